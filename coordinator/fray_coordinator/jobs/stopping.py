"""Stops jobs: writes the request into the job's record, then mails the agent that runs it.

The members of a gang read its record every few seconds, so they get no mail. The bell is rung instead, and the agent
that runs the reconciler sends hints to those that take them, so that they read it at once.
"""

from collections.abc import Callable

from fray_coordinator.core import Core
from fray_coordinator.jobs import gang_commit, mailbox, pending_index
from fray_coordinator.jobs.archive import find_archived
from fray_coordinator.jobs.lookup import job_not_found
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.protocol.stopping import request_stop
from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.object_keys import JobIds, JobKeys
from fray_layouts.records import JobRecord
from fray_layouts.spec import is_gang
from fray_layouts.states import StopOrigin


async def stop(core: Core, job_id: str, reason: str, by: str = StopOrigin.USER) -> JobRecord:
    """Ask the job to end; a job that has ended is left as it is.

    Args:
        reason: shown to people.

    Raises:
        JobNotFound: there is no such job.
    """
    key = JobKeys.key(JobIds.checked(job_id))
    job = await stop_if(core, key, lambda job: request_stop(job, core.now(), reason, by))
    if job is None:
        job = record_of(await find_archived(core, job_id))
    if job is None:
        raise await job_not_found(core, job_id)
    return job


async def stop_if(
    core: Core, key: str, decide: Callable[[JobRecord], JobRecord | None], known: Stored[JobRecord] | None = None
) -> JobRecord | None:
    """Write the stop that `decide` returns for the current record; then mail the agent, or delete the index entry.

    Args:
        decide: returns None to leave the job alone.
        known: the record, if it was just read.

    Returns:
        The present record; None if there is none.
    """
    update = await core.records.change(key, JobRecord, decide, known)
    if update.stored is None:
        return None
    job = update.stored.record
    if update.wrote and is_gang(job.spec):
        await gang_commit.announce_end(core, job)
    elif update.wrote and is_terminal(job):
        await pending_index.delete_entry(core, entry_of(job))
    elif job.status == Status.RUNNING and job.stop is not None and job.lease is not None:
        await mailbox.post_mail(core, job.lease.agent)
    return job
