"""Which job a name stands for.

Invariant: of the jobs submitted by name in a namespace, at most one has not ended.
Unsafe: two submitters see no such job and each submits one; or a submitter takes the name, dies before its job exists,
and nobody can use the name again.
Why not here: the id of the job to come is put into the name's record by CAS before the job is created. Whoever finds an
id without a job submits under that very id, and creating is create-only: all end up with one job. An id that is older
than the quarantine and has no job is left alone: its submitter has given up, or retention has removed the job.
"""

from __future__ import annotations

from fray_coordinator.protocol.transitions import is_terminal
from fray_layouts.records import JobRecord, NameRecord


def successor(
    known: NameRecord | None, job: JobRecord | None, fresh: str, now: float, wait: float
) -> NameRecord | None:
    """The name's next record; None if it stays with the job that it names.

    Args:
        job: what lies under the id in `known`.
        fresh: the id of the job that would follow.
        wait: seconds that a submitter may need to create its job; the quarantine.
    """
    if known is None:
        return NameRecord(job=fresh, since=now)
    if _stays(known, job, now, wait):
        return None
    return NameRecord(job=fresh, since=now, incarnation=known.incarnation + 1)


def _stays(known: NameRecord, job: JobRecord | None, now: float, wait: float) -> bool:
    if job is None:
        return now - known.since < wait
    return not is_terminal(job) and job.stop is None
