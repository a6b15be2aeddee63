"""Stops jobs, and then their children.

A stop is written into the job's record; then the agent that runs the job gets mail. The members of a gang read its
record every few seconds, so they get no mail. The bell is rung instead, and the agent that runs the reconciler sends
hints to those that take them, so that they read it at once.

Children of parents that have ended are ended by the repair. `protocol.stopping` decides which.
"""

from collections.abc import Callable

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.jobs import commit, notifications, pending_index
from fray_coordinator.jobs.job_archive import find_archived
from fray_coordinator.jobs.lookup import job_not_found
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.protocol.stopping import ChildVerdict, cascade_reason, judge_child, request_stop
from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.index_keys import ChildKey
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
        await commit.announce_end(core, job)
    elif update.wrote and is_terminal(job):
        await pending_index.delete_entry(core, entry_of(job))
    elif job.status == Status.RUNNING and job.stop is not None and job.lease is not None:
        await notifications.post_mail(core, job.lease.agent)
    return job


async def child_verdict(core: Core, child: Stored[JobRecord]) -> ChildVerdict:
    """Judge the child by its parent, which is read now, that is, after the child."""
    link = child.record.parent
    if link is None or link.detached:
        return ChildVerdict.KEEP
    parent = await core.records.read(JobKeys.key(link.job), JobRecord, one_of_many=True)
    return judge_child(child.record, record_of(parent), core.now(), core.settings.repair_interval)


async def stop_children(core: Core, parent: str) -> int:
    """Stop the children of `parent` that may no longer run, and delete the entries of those that have ended.

    Returns:
        The number of entries that are left, including those of unreadable children. A terminal parent's children are
        listed again until it is 0.
    """
    entries = [ChildKey.parse(row.key) for row in await core.store.list(ChildKey.prefix(parent))]
    unreadable: dict[str, str] = {}
    left = await map_noting_problems(
        [e for e in entries if e is not None], lambda entry: _stop_child(core, entry), unreadable
    )
    return sum(left) + len(unreadable)


async def _stop_child(core: Core, entry: ChildKey) -> bool:
    """Stop the child of one entry, or delete the entry; returns whether the entry stays."""
    child = await core.records.read(JobKeys.key(entry.child), JobRecord, one_of_many=True)
    if child is None:
        return await _keep_without_record(core, entry)
    link = child.record.parent
    moved_on = link is not None and link.attempt > entry.attempt
    if is_terminal(child.record) or moved_on:
        await core.store.delete(entry.key())
        return False
    if await child_verdict(core, child) is not ChildVerdict.STOP:
        return True
    job = await stop_orphan(core, child)
    return job is not None and not is_terminal(job)


async def stop_orphan(core: Core, child: Stored[JobRecord]) -> JobRecord | None:
    """Stop a child whose verdict is STOP, unless another parent or attempt has adopted it since the verdict."""

    def decide(job: JobRecord) -> JobRecord | None:
        if job.parent != child.record.parent:
            return None
        return request_stop(job, core.now(), cascade_reason(job), by=StopOrigin.PARENT)

    return await stop_if(core, child.key, decide, known=child)


async def _keep_without_record(core: Core, entry: ChildKey) -> bool:
    """Keep an entry without a job record for the quarantine after its last write; returns whether it stays."""
    present = await core.store.get(entry.key())
    if present is None:
        return False
    if core.now() - present.updated <= core.settings.quarantine:
        return True
    if await core.store.get(JobKeys.key(entry.child)) is None:
        await core.store.delete(entry.key(), present.version)
        return False
    return True
