"""Ends a task's processes from the agent, when the runner that should do it does not answer."""

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

_FIRST_WAIT, _LONGEST_WAIT = 0.02, 1.0
"""Seconds between two rounds of kills: most processes are gone after one, others wait for a device for minutes."""


async def kill_tree(runner: asyncio.subprocess.Process, on_left: Callable[[list[int]], None]) -> None:
    """Send SIGKILL to everything below the runner, then to the runner; return when nothing is left.

    The runner goes last: as long as it is there it inherits what is orphaned, so that nothing leaves its tree. What
    the kernel does not let go (a process that waits for a dead disk, say) is waited for however long that takes.

    Args:
        on_left: called with the processes that are still there, after each round that comes a second after the last.
    """
    for wait in backoff(_FIRST_WAIT, _LONGEST_WAIT):
        if runner.returncode is not None:
            return
        try:
            left = _kill_round(runner)
            if wait == _LONGEST_WAIT:
                on_left(left)
        except Exception:  # no descriptor or memory is left, perhaps; there must be another round
            log.exception("the processes below runner %d cannot be killed now", runner.pid)
        await asyncio.sleep(wait)


def _kill_round(runner: asyncio.subprocess.Process) -> list[int]:
    found = descendants(runner.pid)
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended, or is another user's
            os.kill(pid, signal.SIGKILL)
    left = list(filter(is_alive, found))
    if not left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(runner.pid, signal.SIGKILL)  # its own method may reap it, which asyncio is to do
    return left or [runner.pid]
