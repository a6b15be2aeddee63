"""Stopping jobs: the flag in the job's record first, then the mail to whoever runs it."""

from __future__ import annotations

from fray_layouts import names
from fray_layouts.records import JobRecord

from fray_coordinator import index, mail
from fray_coordinator.core import Core
from fray_coordinator.errors import JobNotFound
from fray_coordinator.protocol.stop import request_stop
from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_coordinator.records import Stored


async def stop(
    core: Core, job_id: str, reason: str, by: str = "user", known: Stored[JobRecord] | None = None
) -> JobRecord:
    """Ask that the job end; a job that has ended is left as it is.

    Args:
        reason: shown to people.
        known: the record, if it was just read.

    Raises:
        JobNotFound: there is no such job.
    """
    key = names.Jobs.key(names.JobId.checked(job_id))
    update = await core.records.update(
        key, JobRecord, lambda job: request_stop(job, core.now(), reason, by) if job else None, known=known
    )
    if update.stored is None:
        raise JobNotFound(f"there is no job {job_id} under {core.root}; `fray ps --all` lists those that exist")
    job = update.stored.record
    if update.wrote and is_terminal(job):
        await index.leave(core, job)
    elif job.status == Status.RUNNING and job.lease is not None:
        await mail.notify(core, job.lease.agent)
    return job
