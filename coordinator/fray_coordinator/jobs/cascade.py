"""Ends the children of parents that have ended. `protocol.cascade` decides which children."""

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.jobs import stopping
from fray_coordinator.protocol.cascade import ChildVerdict, cascade_reason, judge_child
from fray_coordinator.protocol.stopping import request_stop
from fray_coordinator.protocol.transitions import is_terminal
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.index_keys import ChildKey
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import JobRecord
from fray_layouts.states import StopOrigin


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

    return await stopping.stop_if(core, child.key, decide, known=child)


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
