"""Kills a task's processes from the agent, when the runner that should do it does not respond."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
from collections.abc import Awaitable, Callable

from fray_agents.runner.process_tree import descendants, is_alive
from fray_coordinator.backoff import backoff

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
