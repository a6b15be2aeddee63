"""Shows what a program waits for, in one line.

Terminals and notebooks show the line and update it. Elsewhere it is logged now and then.

The reason why a wait does not go on is logged as a warning, once for each new reason, wherever the program runs. All of
it can be switched off by the level of the logger "fray".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from fray_coordinator.backoff import WARN_AFTER, backoff
from fray_coordinator.concurrency import start_task
from fray_coordinator.per_process import PerProcess
from fray_layouts.escaping import one_line

log = logging.getLogger("fray")

_LOG_PAUSES = 30.0, 600.0
"""First and longest pause in seconds between two logged lines of one wait. They grow so that a log stays readable."""

_RENEWAL = 1.0
"""Seconds between two updates of a wait's line on a terminal."""


class Waiters:
    """Counts the threads and coroutines that wait for a background thread. Each waits in a block `with waiters`.

    The lines of the background thread are drawn only while there are any, so that none is drawn over a prompt.
    """

    def __init__(self) -> None:
        # append and pop are atomic, so coroutines need no lock, which another thread might hold for long
        self._inside: list[None] = []

    def __bool__(self) -> bool:
        return bool(self._inside)

    def __enter__(self) -> None:
        self._inside.append(None)
        _terminal.value.draw_if_open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._inside.pop()
        _terminal.value.draw_if_open()


class WaitLine:
    """The line of one wait, as a context manager. If there are several, the terminal shows the latest one.

    waiters: those who wait for the background thread that shows the line; None: the thread that shows it waits itself.
    """

    def __init__(self, waiters: Waiters | None = None) -> None:
        self._waiters = waiters
        self._text = ""
        self._why = ""
        self._pauses = backoff(*_LOG_PAUSES)
        self._log_at = time.monotonic() + next(self._pauses)

    def show(self, progress: str, why: str = "") -> None:
        """Show the wait's progress, and the reason why it does not go on ("" if there is none)."""
        progress, now = one_line(progress), time.monotonic()
        is_news, self._why = why not in ("", self._why), why
        if is_news:
            self._log(logging.WARNING, f"{progress}: {one_line(why)}")
        elif not _is_renewed() and now >= self._log_at:
            # a program that has not configured logging shows warnings only
            self._log(logging.INFO if log.hasHandlers() else logging.WARNING, progress)
        if _is_renewed():
            with _terminal.value.lock:
                self._text = progress
                _terminal.value.draw()

    def drawn_text(self) -> str:
        """The text to draw on a terminal; "" if there is none yet, or if nobody waits."""
        return self._text if self._waiters is None or self._waiters else ""

    def _log(self, level: int, text: str) -> None:
        self._log_at = time.monotonic() + next(self._pauses)
        with above_line():
            log.log(level, "%s", text)

    def __enter__(self) -> Self:
        with _terminal.value.lock:
            _terminal.value.lines.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with _terminal.value.lock:
            _terminal.value.lines.remove(self)
            _terminal.value.draw()


@contextlib.contextmanager
def above_line() -> Iterator[None]:
    """The block in which whole lines may be printed on the terminal. A wait's line is shown below them afterwards."""
    with _terminal.value.lock:
        _terminal.value.clear()
        yield
        _terminal.value.draw()


def wait_with_progress(
    step: Callable[[float], bool],
    timeout: float | None,
    progress: Callable[[], str] | None,
    waiters: Waiters | None = None,
) -> bool:
    """Wait until `step` returns True, and show the progress after two seconds. Returns False if the time has run out.

    Args:
        step: waits for the given number of seconds, and returns whether the wait is over.
        timeout: seconds; None waits for ever.
        progress: returns the progress as text. None: something else shows it.
        waiters: as for `WaitLine`, if a background thread may call this.
    """
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    if step(min(deadline - time.monotonic(), WARN_AFTER)):
        return True
    with WaitLine(waiters) as line:
        while (left := deadline - time.monotonic()) > 0:
            if progress is not None:
                line.show(progress())
            if step(min(left, _RENEWAL)):
                return True
    return False


@contextlib.contextmanager
def progress_shown(progress: Callable[[], str]) -> Iterator[None]:
    """The block in which a coroutine waits. The progress is shown after two seconds.

    Coroutines of one event loop that wait with the same `progress` share one line.
    """
    loop = asyncio.get_running_loop()
    count, updater = _updaters.get((loop, progress)) or (0, start_task(_keep_showing(progress)))
    _updaters[loop, progress] = count + 1, updater
    try:
        yield
    finally:
        count, updater = _updaters.pop((loop, progress))
        if count > 1:
            _updaters[loop, progress] = count - 1, updater
        else:
            updater.cancel()


_updaters: dict[tuple[asyncio.AbstractEventLoop, Callable[[], str]], tuple[int, asyncio.Task[None]]] = {}
"""By event loop and progress function: the number of waiting coroutines, and the task that updates their line. Only the
loop's thread changes an entry."""


async def _keep_showing(progress: Callable[[], str]) -> None:
    await asyncio.sleep(WARN_AFTER)
    with WaitLine() as line:
        while True:
            line.show(progress())
            await asyncio.sleep(_RENEWAL)


class _Terminal:
    """The open lines, of which the last one is drawn on the terminal."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.lines: list[WaitLine] = []
        self._drawn = ""
        self._width = 0

    def draw_if_open(self) -> None:
        """Draw the lines anew. It takes the lock only if there are any."""
        if self.lines:
            with self.lock:
                self.draw()

    def draw(self) -> None:
        text = next((text for line in reversed(self.lines) if (text := line.drawn_text())), "")
        if not text:
            self.clear()
        if text == self._drawn:
            return
        self._replace(f"fray: {text}"[: shutil.get_terminal_size().columns - 1])
        self._drawn = text

    def clear(self) -> None:
        if self._drawn:
            self._replace("")
            self._drawn = ""

    def _replace(self, line: str) -> None:
        """Write a line over the current one. "" leaves an empty line."""
        stream, text = sys.stderr, f"\r{line}\x1b[K"
        if notebook() is not None:
            # Notebooks know no sequence that erases, and go back within the output of one stream only: stdout, to
            # which jobs mostly print.
            stream, text = sys.stdout, f"\r{line.ljust(self._width)}{'' if line else chr(13)}"
        self._width = len(line)
        with contextlib.suppress(OSError, ValueError):  # a terminal that was closed must not end a wait
            stream.write(text)
            stream.flush()


def notebook() -> Any | None:
    """The shell of the notebook that runs this program; None if no notebook does."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()  # it may just be imported
    return shell if hasattr(shell, "kernel") else None


def _is_renewed() -> bool:
    """Whether the line is drawn, as on terminals and in notebooks."""
    try:
        drawn = sys.stderr.isatty() or notebook() is not None
    except (AttributeError, ValueError):  # a program without stderr, or with a closed one
        return False
    return drawn and os.environ.get("TERM") != "dumb" and log.isEnabledFor(logging.WARNING)


_terminal = PerProcess(_Terminal)


def _on_a_line_of_its_own(record: logging.LogRecord) -> bool:
    """Take the drawn line away before a record of Fray's log is printed; it is drawn again when it is next renewed."""
    if _terminal.value.lines:
        with _terminal.value.lock:
            _terminal.value.clear()
    return True


log.addFilter(_on_a_line_of_its_own)
