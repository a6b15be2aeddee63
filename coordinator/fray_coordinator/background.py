"""Tasks of an event loop that nobody awaits. None of them ends silently while others still depend on it.

**Invariant.** Whoever depends on a task that runs in the background gets its outcome, an error, or its next turn.
**Unsafe sequence.** Such a task raises. Its exception is shown when the task is collected, if at all, and those that
depend on it wait for ever.
**Why this cannot happen.** `start_task` asks for the function that gets the exception, and logs it. A loop that just
has to go on runs in `keep_running`. All other tasks are awaited by the code that starts them.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

LOOP_PAUSE = 1.0
"""Seconds before work that has raised begins again: one that raises each time costs little."""

log = logging.getLogger("fray")


def start_task(
    work: Coroutine[Any, Any, T], failed: Callable[[BaseException], object] | None = None
) -> asyncio.Task[T]:
    """Start a task that runs in the background until it ends or is cancelled.

    failed: called with the exception, which is logged, if `work` raises; it must end what others wait for. None: nobody
    waits for anything.
    """
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)

    def end(task: asyncio.Task[T]) -> None:
        _running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of Fray has failed: %s", task.get_coro(), exc_info=error)
            if failed is not None:
                failed(error)

    task.add_done_callback(end)
    return task


async def keep_running(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `work` until it returns; if it raises, it begins again after a pause."""
    while True:
        try:
            return await work()
        except Exception:
            log.exception("work of Fray in the background has failed, and begins again: %s", work)
        await asyncio.sleep(LOOP_PAUSE)


_running: set[asyncio.Task[Any]] = set()
"""The tasks, kept alive here because an event loop has only weak references to them."""
