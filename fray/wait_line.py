"""The line that tells a person what a program waits for.

A terminal and a notebook show one line, which is renewed. Elsewhere it is logged now and then.

What hinders is logged as a warning wherever the program runs, once for each new reason. The level of the logger "fray"
switches all of it off.
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
from fray_layouts.escaping import one_line

log = logging.getLogger("fray")

_LOG_PAUSES = 30.0, 600.0
"""Seconds between two lines of one wait where they are not renewed, the first and the longest: a log stays readable."""

_RENEWAL = 1.0
"""Seconds between two looks at how far a wait is."""


class WaitLine:
    """The line of one wait, a context manager; of several at once the terminal shows the latest."""

    def __init__(self) -> None:
        self._text = ""
        self._why = ""
        self._pauses = backoff(*_LOG_PAUSES)
        self._log_at = time.monotonic() + next(self._pauses)

    def show(self, progress: str, why: str = "") -> None:
        """Tell how far it is, and why it does not go on ("" if nothing hinders it)."""
        progress, now = one_line(progress), time.monotonic()
        is_news, self._why = why not in ("", self._why), why
        if is_news:
            self._log(logging.WARNING, f"{progress}: {one_line(why)}")
        elif not _is_renewed() and now >= self._log_at:
            # a program that has not configured logging shows warnings only
            self._log(logging.INFO if log.hasHandlers() else logging.WARNING, progress)
        if _is_renewed():
            with _terminal.lock:
                self._text = progress
                _terminal.draw()

    def _log(self, level: int, text: str) -> None:
        self._log_at = time.monotonic() + next(self._pauses)
        with above_line():
            log.log(level, "%s", text)

    def __enter__(self) -> Self:
        with _terminal.lock:
            _terminal.lines.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with _terminal.lock:
            _terminal.lines.remove(self)
            _terminal.draw()


@contextlib.contextmanager
def above_line() -> Iterator[None]:
    """Print whole lines on the terminal within: the line of a wait is taken away, and is below them afterwards."""
    with _terminal.lock:
        _terminal.clear()
        yield
        _terminal.draw()


def wait_telling(step: Callable[[float], bool], timeout: float | None, tell: Callable[[], str] | None) -> bool:
    """Wait for something, and tell what is waited for after two seconds; whether it has come in time.

    Args:
        step: waits for so many seconds; whether it has come.
        timeout: seconds; None waits for ever.
        tell: how far it is; None: something else shows that.
    """
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    if step(min(deadline - time.monotonic(), WARN_AFTER)):
        return True
    with WaitLine() as line:
        while (left := deadline - time.monotonic()) > 0:
            if tell is not None:
                line.show(tell())
            if step(min(left, _RENEWAL)):
                return True
    return False


@contextlib.contextmanager
def telling(tell: Callable[[], str]) -> Iterator[None]:
    """Tell how far something is, after two seconds, while coroutines wait within.

    Any number of them that wait in one event loop, and tell the same, have one line.
    """
    loop = asyncio.get_running_loop()
    count, teller = _tellers.get((loop, tell)) or (0, loop.create_task(_keep_telling(tell)))
    _tellers[loop, tell] = count + 1, teller
    try:
        yield
    finally:
        count, teller = _tellers.pop((loop, tell))
        if count > 1:
            _tellers[loop, tell] = count - 1, teller
        else:
            teller.cancel()


_tellers: dict[tuple[asyncio.AbstractEventLoop, Callable[[], str]], tuple[int, asyncio.Task[None]]] = {}
"""By loop and what is told: how many coroutines wait, and the task that tells. Only the loop's thread changes them."""


async def _keep_telling(tell: Callable[[], str]) -> None:
    await asyncio.sleep(WARN_AFTER)
    with WaitLine() as line:
        while True:
            line.show(tell())
            await asyncio.sleep(_RENEWAL)


class _Terminal:
    """The lines that are open, of which the last one is drawn."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.lines: list[WaitLine] = []
        self._drawn = ""
        self._width = 0

    def draw(self) -> None:
        text = next((line._text for line in reversed(self.lines) if line._text), "")
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
        """Write a line over the one that is there. "" leaves an empty line."""
        stream, text = sys.stderr, f"\r{line}\x1b[K"
        if notebook() is not None:
            # Notebooks know no sequence that erases, and go back within the output of one stream only: stdout, to
            # which jobs mostly print.
            stream, text = sys.stdout, f"\r{line.ljust(self._width)}{'' if line else chr(13)}"
        self._width = len(line)
        with contextlib.suppress(OSError, ValueError):  # a terminal that is gone hinders no wait
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


_terminal = _Terminal()


def _forget() -> None:
    global _terminal
    _terminal = _Terminal()


os.register_at_fork(after_in_child=_forget)
