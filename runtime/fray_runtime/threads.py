"""Threads of Fray's own. None of them ends silently while others still depend on it.

**Invariant.** Whoever waits for a thread of Fray gets an outcome, an error, or the next turn of its loop.
**Unsafe sequence.** A call of an actor raises outside the part of its thread that is guarded, for example in the
cleanup of a generator. The thread ends, and all later calls wait for it for ever.
**Why this cannot happen.** `start_thread` asks for the function that gets such an exception: it ends whatever others
wait for. A loop that just has to go on is started with `start_loop`, which begins it again. Nothing else in Fray starts
a thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

LOOP_PAUSE = 0.2
"""Seconds before a loop that has raised begins again: one that raises each time costs little."""

_EXIT_SOFTWARE = 70
"""The exit code of a process that a thread's failure ends, as in sysexits.h."""

_log = logging.getLogger("fray")


def start_thread(work: Callable[[], object], name: str, failed: Callable[[BaseException], object]) -> threading.Thread:
    """Start the thread that `new_thread` makes. Raises RuntimeError: no thread can be started."""
    thread = new_thread(work, name, failed)
    thread.start()
    return thread


def new_thread(
    work: Callable[[], object], name: str, failed: Callable[[BaseException], object], daemon: bool = True
) -> threading.Thread:
    """A thread that is not started yet.

    Args:
        failed: called in the thread, with the exception, if `work` raises; it must end what others wait for.
        daemon: the process may end before the thread does.
    """

    def run() -> None:
        try:
            work()
        except BaseException as error:
            _log.exception("a thread of Fray has failed: %s", name)
            failed(error)

    return threading.Thread(target=run, name=name, daemon=daemon)


def start_loop(loop: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread that calls `loop` until it returns; if it raises, it is called again after a pause.

    Raises:
        RuntimeError: no thread can be started.
    """

    def run() -> None:
        while True:
            try:
                loop()
                return
            except BaseException:
                _log.exception("a loop of Fray has failed, and begins again: %s", name)
                time.sleep(LOOP_PAUSE)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def run_event_loop(loop: asyncio.AbstractEventLoop, closed: Callable[[], bool] = lambda: False) -> None:
    """Run an event loop in this thread until `closed()`.

    SystemExit and KeyboardInterrupt of a task leave `run_forever`. The task has them too, and the other tasks go on.
    """
    while not (closed() or loop.is_closed()):
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


def nobody_waits(error: BaseException) -> None:
    """Do nothing more about a failed thread: nobody waits for it, and the log has the exception."""


def end_process(error: BaseException) -> None:
    """End this process at once, because it cannot do its work without the failed thread."""
    os._exit(_EXIT_SOFTWARE)
