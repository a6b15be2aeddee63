"""Ends what a task left when its runner was killed: then nobody is the parent of its processes any more."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

from fray_agents.runner.process_tree import descendants, is_alive, signal_each
from fray_agents.runner.task_cgroup import TaskCgroup
from fray_agents.tasks.environment import TASK_DIR_VAR
from fray_coordinator.backoff import backoff

log = logging.getLogger("fray")

FIRST_WAIT, LONGEST_WAIT = 0.02, 1.0
"""Seconds between two rounds of kills: most processes are gone after one, others wait for a device for minutes."""


async def end_leftovers(
    directory: Path, cgroup: TaskCgroup, on_left: Callable[[list[int]], None] = lambda pids: None
) -> None:
    """Send SIGKILL to all that is in the cgroup, or has the directory in its environment, until nothing is left.

    A process without a cgroup that has emptied its environment is not found.

    Args:
        directory: of one task, or of several in directories below it.
        on_left: called with the processes that are still there, after each round that comes a second after the last.
    """
    for wait in backoff(FIRST_WAIT, LONGEST_WAIT):
        try:
            left = await asyncio.to_thread(_kill_round, directory, cgroup)
        except Exception:  # no descriptor or memory is left, perhaps; there must be another round
            log.exception("what was started for %s cannot be looked for now", directory)
        else:
            if not left:
                cgroup.remove()
                return
            if wait == LONGEST_WAIT:
                on_left(left)
        await asyncio.sleep(wait)


def _kill_round(directory: Path, cgroup: TaskCgroup) -> list[int]:
    """Kill what there is now; the processes that it met."""
    grouped = cgroup.processes()
    cgroup.kill()
    named = _processes_of(directory)
    found = {*named, *(child for pid in named for child in descendants(pid))}
    signal_each(found, signal.SIGKILL)
    return sorted(filter(is_alive, found.union(grouped)))


def _processes_of(directory: Path) -> list[int]:
    """This user's processes that were started as those of a task with this directory, or one in it."""
    value = f"{TASK_DIR_VAR}=".encode() + os.fsencode(directory)
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                environ = file.read()
        except OSError:
            continue  # another user's, or gone
        if value + b"\0" in environ or value + b"/" in environ:
            found.append(int(name))
    return found
