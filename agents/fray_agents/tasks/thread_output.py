"""Logs of tasks in threads: `sys.stdout` and `sys.stderr` also write to the log of the task whose code prints.

That task is known by a context variable, so it holds for a task's own thread, its coroutines and the calls that it
serves as an actor, and not for threads that user code starts. The streams of the process are wrapped by the first task
and stay so: `print` holds no reference to the stream that it prints to, and one that is replaced and freed under
another thread's `print` ends the interpreter.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol, TextIO

from fray_agents.runner.task_log import CHUNK_BYTES, STREAMS, LineFormatter, LogChunks, chunk_name
from fray_agents.tasks.handle import TaskFile

current_log: ContextVar[ThreadLog | None] = ContextVar("fray_task_log", default=None)
os.register_at_fork(after_in_child=lambda: current_log.set(None))  # its files and its lock are the parent's


class Echo(Protocol):
    """Shows on the process's own streams what one task prints."""

    def write(self, name: str, stream: TextIO, text: str) -> None:
        """Show a text that was printed to the stream of this name."""

    def end(self) -> None:
        """Show the lines that the task has not finished."""


class ThreadLog:
    """One task's log: written by any thread, uploaded by the agent's loop, in which it is made.

    echo: how the process's own streams show what it prints; None: as it is.
    """

    def __init__(self, directory: Path, echo: Echo | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.echo = echo
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self._lines = {name: LineFormatter(name) for name in STREAMS}
        self._chunks = LogChunks(str(directory), sys.maxsize, lambda number: None)
        self._lock = threading.RLock()  # writing may run a finalizer that prints
        self._printed = asyncio.Event()
        self._closed = asyncio.Event()

    def write(self, stream: str, text: str) -> None:
        """Keep what was printed, unless the task is over."""
        with self._lock:
            if self._closed.is_set():
                return
            is_first = self._chunks.due() is None
            self._chunks.begin()
            self._chunks.append(self._lines[stream].format(text.encode(errors="backslashreplace")))
        if is_first:
            self._loop.call_soon_threadsafe(self._printed.set)

    def close(self) -> None:
        """The task is over: complete the last chunk. Called in the loop."""
        with self._lock:
            self._closed.set()
            self._printed.set()
            for lines in self._lines.values():
                self._chunks.append(lines.flush())
            self._chunks.seal()

    async def chunks(self) -> AsyncIterator[tuple[int, TaskFile]]:
        """Number and file of each chunk, in order, until the log is closed."""
        given = 0
        while not self._closed.is_set() or given < self._chunks.count:
            await self._printed.wait()
            self._printed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), self._time_until_due())
            with self._lock:
                self._chunks.seal()
            while given < self._chunks.count:
                given += 1
                yield given, TaskFile(self._directory / chunk_name(given), 2 * CHUNK_BYTES)

    def _time_until_due(self) -> float:
        due = self._chunks.due()
        return 0.0 if due is None else max(0.0, due - time.monotonic())


class OutputTee:
    """A stream of this process that also writes to the current task's log; otherwise it is the stream."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self.stream = stream
        self._name = name

    def write(self, text: str) -> int:
        """As `TextIO.write`."""
        log = current_log.get()
        if log is None or log.echo is None:
            self.stream.write(text)
        else:
            shown_by = current_log.set(None)  # what else the echo writes is not the task's
            try:
                log.echo.write(self._name, self.stream, text)
            finally:
                current_log.reset(shown_by)
        if log is not None:
            log.write(self._name, text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """As `TextIO.writelines`."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (sys, self._name)


def tee_process_streams() -> None:
    """Have the process's streams write to logs from now on; again, should someone have replaced them."""
    for name in STREAMS:
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, OutputTee):
            setattr(sys, name, OutputTee(name, stream))
