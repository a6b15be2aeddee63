"""Ending the children of parents that ended. Which child must go is decided in `protocol.cascade`."""

from __future__ import annotations

from fray_coordinator import stopping
from fray_coordinator.core import Core, each_sound
from fray_coordinator.protocol.cascade import Verdict, verdict, why
from fray_coordinator.protocol.stop import request_stop
from fray_coordinator.protocol.transitions import is_terminal
from fray_coordinator.records import Stored, record_of
from fray_layouts import names
from fray_layouts.names import Child
from fray_layouts.records import JobRecord


async def family_verdict(core: Core, child: Stored[JobRecord]) -> Verdict:
    """Whether the child may run; the parent is read now, that is after the child."""
    link = child.record.parent
    if link is None or link.detached:
        return Verdict.KEEP
    parent = await core.records.read(names.Jobs.key(link.job), JobRecord, one_of_many=True)
    return verdict(child.record, record_of(parent), core.now(), core.settings.repair_interval)


async def end_children(core: Core, parent: str) -> int:
    """Stop the children of `parent` that may no longer run and forget those that have ended.

    Returns:
        How many entries are left, those of children that cannot be read too; a terminal parent's children are listed
        again until it is 0.
    """
    entries = [Child.parse(row.key) for row in await core.store.list(Child.prefix(parent))]
    unreadable: dict[str, str] = {}
    left = await each_sound([e for e in entries if e is not None], lambda entry: _end_child(core, entry), unreadable)
    return sum(left) + len(unreadable)


async def _end_child(core: Core, entry: Child) -> bool:
    """Deal with one entry; whether it stays."""
    child = await core.records.read(names.Jobs.key(entry.child), JobRecord, one_of_many=True)
    if child is None:
        return await _keep_without_record(core, entry)
    link = child.record.parent
    moved_on = link is not None and link.attempt > entry.attempt
    if is_terminal(child.record) or moved_on:
        await core.store.delete(entry.key())
        return False
    if await family_verdict(core, child) is not Verdict.STOP:
        return True
    job = await stop_orphan(core, child)
    return job is not None and not is_terminal(job)


async def stop_orphan(core: Core, child: Stored[JobRecord]) -> JobRecord | None:
    """Stop a child whose verdict is STOP, unless it was adopted since: the verdict is about this link only."""

    def decide(job: JobRecord) -> JobRecord | None:
        if job.parent != child.record.parent:
            return None
        return request_stop(job, core.now(), why(job), by="parent")

    return await stopping.stop_if(core, child.key, decide, known=child)


async def _keep_without_record(core: Core, entry: Child) -> bool:
    """An entry whose child was never created, or not yet: it stays for the quarantine, counted from its last write."""
    lies = await core.store.get(entry.key())
    if lies is None:
        return False
    if core.now() - lies.updated <= core.settings.quarantine:
        return True
    if await core.store.get(names.Jobs.key(entry.child)) is None:
        await core.store.delete(entry.key(), lies.version)
        return False
    return True
