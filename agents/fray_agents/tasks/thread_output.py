"""Logs of tasks in threads: `sys.stdout` and `sys.stderr` also write to the log of the task whose code prints.

A context variable identifies that task. It covers the task's own thread, its coroutines and the calls that it serves as
an actor, but not threads that user code starts. The first task wraps the process's streams, and they stay wrapped:
`print` holds no reference to its stream, and the interpreter crashes if a stream is replaced and freed while another
thread prints to it.
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
os.register_at_fork(after_in_child=lambda: current_log.set(None))  # its files and its lock belong to the parent


class Echo(Protocol):
    """Shows what one task prints on the process's own streams."""

    def write(self, name: str, stream: TextIO, text: str) -> None:
        """Show a text that was printed to the stream with this name."""

    def end(self) -> None:
        """Show the last lines, which the task has not finished with a newline."""


class ThreadLog:
    """One task's log: any thread writes it, and the agent's loop, which creates it, uploads it.

    echo: how the process's own streams show what the task prints; None: unchanged.
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
        """Keep a text that was printed, unless the task is over."""
        with self._lock:
            if self._closed.is_set():
                return
            is_first = self._chunks.due() is None
            self._chunks.begin()
            self._chunks.append(self._lines[stream].format(text.encode(errors="backslashreplace")))
        if is_first:
            self._loop.call_soon_threadsafe(self._printed.set)

    def close(self) -> None:
        """Finish the log and its last chunk, as the task is over. Called in the loop."""
        with self._lock:
            self._closed.set()
            self._printed.set()
            for lines in self._lines.values():
                self._chunks.append(lines.flush())
            self._chunks.seal()
            self._chunks.close()

    async def chunks(self) -> AsyncIterator[tuple[int, TaskFile]]:
        """Number and file of each chunk, in order, until the log is closed."""
        yielded = 0
        while not self._closed.is_set() or yielded < self._chunks.count:
            await self._printed.wait()
            self._printed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), self._time_until_due())
            with self._lock:
                self._chunks.seal()
            while yielded < self._chunks.count:
                yielded += 1
                yield yielded, TaskFile(self._directory / chunk_name(yielded), 2 * CHUNK_BYTES)

    def _time_until_due(self) -> float:
        due = self._chunks.due()
        return 0.0 if due is None else max(0.0, due - time.monotonic())


class OutputTee:
    """A stream of this process that also writes to the current task's log; it passes everything on to the stream."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self.stream = stream
        self._name = name

    def write(self, text: str) -> int:
        """As `TextIO.write`."""
        log = current_log.get()
        if log is None or log.echo is None:
            self.stream.write(text)
        else:
            shown_by = current_log.set(None)  # other output of the echo is not the task's
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
    """Make the process's streams write to logs from now on; again if somebody has replaced them."""
    for name in STREAMS:
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, OutputTee):
            setattr(sys, name, OutputTee(name, stream))
