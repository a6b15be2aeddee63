"""Kills a task's processes from the agent, when the runner does not respond or was killed itself.

Processes that a task left when its runner was killed have no parent any more that would end them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from fray_agents.runner.process_tree import descendants, environment_of, is_alive, signal_each
from fray_agents.runner.task_cgroup import TaskCgroup
from fray_coordinator.backoff import backoff
from fray_runtime.current_task import TASK_DIR_VAR

log = logging.getLogger("fray")

_FIRST_WAIT, _LONGEST_WAIT = 0.02, 1.0
"""Seconds between two rounds of kills: most processes end after one round, some wait for a device for minutes."""


async def kill_tree(runner: asyncio.subprocess.Process, on_left: Callable[[list[int]], None]) -> None:
    """Send SIGKILL to everything below the runner, then to the runner; return when nothing is left.

    The runner is killed last: while it exists, orphaned processes become its children, so that none leaves its tree.
    Processes that the kernel does not end, for example because they wait for a dead disk, are waited for without limit.

    on_left: see `kill_until_none_left`.
    """
    failure = f"the processes below runner {runner.pid} cannot be killed now"
    await kill_until_none_left(functools.partial(_kill_round, runner), on_left, failure)


async def kill_until_none_left(
    kill_round: Callable[[], Awaitable[list[int]]], on_left: Callable[[list[int]], None], failure: str
) -> None:
    """Repeat a round of kills until none of its processes is left.

    Args:
        kill_round: kills the processes that exist now; returns those that are still there.
        on_left: called with what `kill_round` returned, after each round once rounds are a second apart.
        failure: the log line for a round that raised.
    """
    for wait in backoff(_FIRST_WAIT, _LONGEST_WAIT):
        try:
            left = await kill_round()
            if not left:
                return
            if wait == _LONGEST_WAIT:
                on_left(left)
        except Exception:  # descriptors or memory may have run out; there must be another round
            log.exception("%s", failure)
        await asyncio.sleep(wait)


async def _kill_round(runner: asyncio.subprocess.Process) -> list[int]:
    if runner.returncode is not None:
        return []
    found = descendants(runner.pid)
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended, or belongs to another user
            os.kill(pid, signal.SIGKILL)
    left = list(filter(is_alive, found))
    if not left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(runner.pid, signal.SIGKILL)  # the method `kill` may reap it, which asyncio has to do
    return left or [runner.pid]


async def end_leftovers(
    directory: Path, cgroup: TaskCgroup, on_left: Callable[[list[int]], None] = lambda pids: None
) -> None:
    """Send SIGKILL to all processes in the cgroup or with the directory in their environment, until none is left.

    A process that is in no cgroup and has emptied its environment is not found.

    Args:
        directory: a task's, or a folder that holds those of several tasks.
        on_left: see `kill_until_none_left`.
    """
    kill_round = functools.partial(asyncio.to_thread, _kill_leftovers_round, directory, cgroup)
    failure = f"cannot look for processes that were started for {directory} now"
    await kill_until_none_left(kill_round, on_left, failure)
    cgroup.remove()


def _kill_leftovers_round(directory: Path, cgroup: TaskCgroup) -> list[int]:
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
