"""Admission of files that people drop into the inbox.

**Invariant.** Each version of a dropped file becomes exactly one job, however many agents see the file and whenever
they die.

**Unsafe sequence.**

1. Agents A and B read the same file.
2. A admits it, runs the job and deletes the file.
3. B, which was slow, creates the job again.

Or: A admits a file that names a parent and dies. The parent ends, and B rejects the file of a job that has run.

Or: a person overwrites the file between the read and the admission, and the old version runs although nobody wants it
any more.

**Why this cannot happen.** The job's id is a function of key, version and time, so A and B create the same record. The
record is created UNADMITTED, and nobody can claim it yet. It is admitted only if the inbox still holds that version
afterwards, and withdrawn otherwise. An admitted record is never taken back, and retention keeps a record while the
inbox holds its version. A file is rejected for its parent's sake only if it has no record, and only once the parent has
ended: a parent that is preempted runs again. A record that is created after its job was archived is deleted before it
is admitted. On local files, the time and the inode of a file can repeat while people work on it. So an
agent first renames the file to a name that was never used before; that name and the time in it then stand for key and
time.
"""

import hashlib
from enum import Enum

from fray_coordinator.protocol.job_identity import identify
from fray_coordinator.protocol.stopping import stop_now
from fray_coordinator.protocol.transitions import Event, Status, is_terminal, transition
from fray_layouts.inbox_keys import InboxKeys
from fray_layouts.key_encoding import digest_text
from fray_layouts.object_keys import JobIds
from fray_layouts.records import InboxOrigin, JobRecord
from fray_layouts.spec import JobSpec, is_gang
from fray_layouts.states import StopOrigin


class ParentVerdict(Enum):
    """What the parent that a dropped spec names says about it."""

    RUNS = "runs"
    """It runs, or the spec names none."""
    WAITS = "waits"
    """It does not run now, but may run again: a preempted parent comes back within moments."""
    OVER = "over"
    """It has ended or does not exist."""


def judge_parent(spec: JobSpec, parent: JobRecord | None) -> ParentVerdict:
    """Judge a spec that was dropped by its parent's record; None: there is no such record.

    It counts only for files that have no job yet: an admission that was begun is finished whatever the parent does.
    """
    if not spec.parent:
        return ParentVerdict.RUNS
    if parent is None or is_terminal(parent):
        return ParentVerdict.OVER
    return ParentVerdict.RUNS if parent.status == Status.RUNNING else ParentVerdict.WAITS


def record_of_drop(key: str, version: str, updated: float, spec: JobSpec, parent: JobRecord | None = None) -> JobRecord:
    """The unadmitted record of a dropped spec. Everybody who read the same version makes the same record.

    updated: the storage's time of the drop, or of the rename on local files. So the same bytes dropped again later are
    a new job.
    """
    origin = InboxOrigin(key=InboxKeys.dropped_as(key), version=version)
    if key != origin.key:
        origin.staged_key = key
    token = digest_text(hashlib.sha256(f"{key}\n{version}\n{updated}".encode()).digest())
    job_id, spec = identify(spec, parent, JobIds.fresh(spec.name, updated, token))
    return JobRecord(id=job_id, spec=spec, status=str(Status.UNADMITTED), submitted_at=updated, inbox=origin)


def admit_or_withdraw(job: JobRecord, version_in_inbox: str | None, now: float) -> JobRecord | None:
    """The record once it is admitted or withdrawn; None if that was decided before.

    version_in_inbox: what the inbox holds under the record's key, read *after* `job` was read or created.
    """
    if job.status != Status.UNADMITTED or job.inbox is None:
        return None
    if version_in_inbox == job.inbox.version:
        return transition(job, Event.GATHER if is_gang(job.spec) else Event.ADMIT)
    return stop_now(job, now, "its file in the inbox was changed or removed before it was admitted", by=StopOrigin.USER)
