"""Ends processes that a task left when its runner was killed: they have no parent any more that would end them."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path

from fray_agents.runner.process_tree import descendants, environment_of, is_alive, signal_each
from fray_agents.runner.task_cgroup import TaskCgroup
from fray_agents.tasks.environment import TASK_DIR_VAR
from fray_agents.tasks.force_kill import kill_until_none_left


async def end_leftovers(
    directory: Path, cgroup: TaskCgroup, on_left: Callable[[list[int]], None] = lambda pids: None
) -> None:
    """Send SIGKILL to all processes in the cgroup or with the directory in their environment, until none is left.

    A process that is in no cgroup and has emptied its environment is not found.

    Args:
        directory: a task's, or a folder that holds those of several tasks.
        on_left: see `kill_until_none_left`.
    """
    kill_round = functools.partial(asyncio.to_thread, _kill_round, directory, cgroup)
    failure = f"cannot look for processes that were started for {directory} now"
    await kill_until_none_left(kill_round, on_left, failure)
    cgroup.remove()


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
        entries = environment_of(int(name))
        if value + b"\0" in entries or value + b"/" in entries:
            found.append(int(name))
    return found
