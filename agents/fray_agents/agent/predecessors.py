"""Reaps this host's dead agents, whose locks are free, without waiting until their silence is noticed."""

import asyncio
import logging
import os
from pathlib import Path

from fray_agents.host.agent_lock import AgentLock, work_dir_of
from fray_agents.runner.task_cgroup import TaskCgroup
from fray_agents.tasks.force_kill import end_leftovers
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreRefused, StoreUnavailable, is_outage
from fray_coordinator.protocol.heartbeat import is_fenced
from fray_coordinator.reconcile import reaper
from fray_coordinator.reconcile.reaper import write_off
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord
from fray_runtime.directories import remove_tree, try_lock

log = logging.getLogger("fray")

LEFTOVERS_TIMEOUT = 5.0
"""Seconds that a starting agent waits for a dead one's processes: killed ones end within milliseconds, and its own work
does not wait for processes that hang on a dead disk."""


async def reap_predecessors(core: Core, own: AgentLock) -> list[str]:
    """Declare dead and reap this host's agents whose locks are free, and remove their files; returns their ids.

    Raises StoreUnavailable: the store does not answer.
    """
    reaped = []
    for path in sorted(own.path.parent.glob("*.lock")):
        if path == own.path:
            continue
        fd = try_lock(path)
        if fd is None:
            continue
        try:
            left = work_dir_of(path.stem, fd)
            if left is not None and not await _kill_leftovers(left):
                log.warning("%s is not reaped yet: processes of its tasks in %s do not end", path.stem, left)
                continue
            try:
                if await _reap(core, path.stem):
                    reaped.append(path.stem)
            except (BadRecord, StoreRefused, StoreUnavailable) as error:
                if is_outage(error):
                    raise
                log.warning("%s is not reaped yet; the coordinator's pass will reap it: %s", path.stem, error)
            if left is not None:
                await remove_tree(left)
            path.unlink(missing_ok=True)
        finally:
            os.close(fd)
    return reaped


async def _kill_leftovers(work_dir: Path) -> bool:
    """Kill the processes of the tasks that had their directories there; whether none is left."""
    try:
        async with asyncio.timeout(LEFTOVERS_TIMEOUT):
            await end_leftovers(work_dir, TaskCgroup(""))
    except TimeoutError:
        return False
    return True


async def _reap(core: Core, agent_id: str) -> bool:
    key = AgentKeys.key(agent_id)
    try:
        found = await core.records.read(key, AgentRecord)
    except BadRecord:
        if (unreadable := await core.store.get(key)) is not None:
            await write_off(core, agent_id, unreadable)
        return unreadable is not None
    while found is not None and not is_fenced(found.record):
        declared = await reaper.declare_agent_dead(core, found)
        found = declared or await core.records.read(key, AgentRecord)
    if found is None:
        return False
    await reaper.reap(core, found)
    return True
