"""Kills a task's processes from the agent, when the runner that should do it does not respond."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable

from fray_agents.runner.process_tree import descendants, is_alive
from fray_coordinator.backoff import backoff

log = logging.getLogger("fray")

FIRST_WAIT, LONGEST_WAIT = 0.02, 1.0
"""Seconds between two rounds of kills: most processes end after one round, some wait for a device for minutes."""


async def kill_tree(runner: asyncio.subprocess.Process, on_left: Callable[[list[int]], None]) -> None:
    """Send SIGKILL to everything below the runner, then to the runner; return when nothing is left.

    The runner is killed last: while it exists, orphaned processes become its children, so that none leaves its tree.
    Processes that the kernel does not end, for example because they wait for a dead disk, are waited for without limit.

    Args:
        on_left: called with the processes that are still there, after each round once rounds are a second apart.
    """
    for wait in backoff(FIRST_WAIT, LONGEST_WAIT):
        if runner.returncode is not None:
            return
        try:
            left = _kill_round(runner)
            if wait == LONGEST_WAIT:
                on_left(left)
        except Exception:  # descriptors or memory may have run out; there must be another round
            log.exception("the processes below runner %d cannot be killed now", runner.pid)
        await asyncio.sleep(wait)


def _kill_round(runner: asyncio.subprocess.Process) -> list[int]:
    found = descendants(runner.pid)
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended, or belongs to another user
            os.kill(pid, signal.SIGKILL)
    left = list(filter(is_alive, found))
    if not left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(runner.pid, signal.SIGKILL)  # the method `kill` may reap it, which asyncio has to do
    return left or [runner.pid]
