"""Ends processes that a task left when its runner was killed: they have no parent any more that would end them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

from fray_agents.runner.process_tree import descendants, environment_of, is_alive, signal_each
from fray_agents.runner.task_cgroup import TaskCgroup
from fray_agents.tasks.environment import TASK_DIR_VAR
from fray_agents.tasks.force_kill import FIRST_WAIT, LONGEST_WAIT
from fray_coordinator.backoff import backoff

log = logging.getLogger("fray")


async def end_leftovers(
    directory: Path, cgroup: TaskCgroup, on_left: Callable[[list[int]], None] = lambda pids: None
) -> None:
    """Send SIGKILL to all processes in the cgroup or with the directory in their environment, until none is left.

    A process that is in no cgroup and has emptied its environment is not found.

    Args:
        directory: a task's, or a folder that holds those of several tasks.
        on_left: called with the processes that are still there, after each round once rounds are a second apart.
    """
    for wait in backoff(FIRST_WAIT, LONGEST_WAIT):
        try:
            left = await asyncio.to_thread(_kill_round, directory, cgroup)
        except Exception:  # descriptors or memory may have run out; there must be another round
            log.exception("cannot look for processes that were started for %s now", directory)
        else:
            if not left:
                cgroup.remove()
                return
            if wait == LONGEST_WAIT:
                on_left(left)
        await asyncio.sleep(wait)


def _kill_round(directory: Path, cgroup: TaskCgroup) -> list[int]:
    """Kill all processes that exist now; those of them that are still alive."""
    grouped = cgroup.processes()
    cgroup.kill()
    named = _processes_of(directory)
    found = {*named, *(child for pid in named for child in descendants(pid))}
    signal_each(found, signal.SIGKILL)
    return sorted(filter(is_alive, found.union(grouped)))


def _processes_of(directory: Path) -> list[int]:
    """This user's processes that were started for a task with this directory, or with one below it."""
    value = f"{TASK_DIR_VAR}=".encode() + os.fsencode(directory)
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        environ = environment_of(int(name))
        if value + b"\0" in environ or value + b"/" in environ:
            found.append(int(name))
    return found
