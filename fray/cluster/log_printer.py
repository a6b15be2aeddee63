"""Prints the output of jobs on this program's own streams: each line behind the id of its job, in the job's colour.

A gang's lines also have the number of the replica that wrote them.

A separate thread prints, so that a stopped or slow terminal delays nobody. Above all it must not delay the background
loop, whose heartbeats keep the driver alive. If the terminal cannot keep up, lines are left out, and a line says so.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from itertools import cycle, groupby
from typing import TextIO

from fray.wait_line import WaitLine, above_line, notebook
from fray_agents.runner.task_log import STREAMS
from fray_coordinator.jobs.logs import LogLine
from fray_coordinator.per_process import PerProcess
from fray_runtime.threads import start_loop
from fray_runtime.variables import read_variable

LONGEST_LINE = 64 * 1024
"""Bytes of a line that are kept until it is complete, which bounds the memory. A longer line is shown as several."""


class ReplicaLines:
    """Joins the pieces of each replica's lines, because mixed pieces of several replicas could not be read."""

    def __init__(self) -> None:
        self._unfinished: dict[tuple[int, int, str], LogLine] = {}

    def whole(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """The lines that these pieces complete, each with its prefix."""
        for line in lines:
            place = line.attempt, line.replica, line.stream
            before = self._unfinished.pop(place, None)
            whole = line if before is None else replace(line, data=before.data + line.data)
            if line.complete or len(whole.data) > LONGEST_LINE:
                yield _prefixed(whole)
            else:
                self._unfinished[place] = whole

    def rest(self) -> Iterator[LogLine]:
        """The lines that are not complete yet."""
        left, self._unfinished = self._unfinished, {}
        return map(_prefixed, left.values())


def _prefixed(line: LogLine) -> LogLine:
    return replace(line, data=b"[%d] %s" % (line.replica, line.data), complete=True)


log = logging.getLogger("fray")

SWITCH_VARIABLE = "FRAY_LOG_TO_DRIVER"
"""Variable that shows the output of jobs in this program (1), or does not (0)."""

MAX_QUEUED_LINES = 10_000
"""Lines that wait for the terminal at most, some megabytes. Most terminals show as many in a second."""

_colors = cycle((36, 33, 35, 32, 34))
"""SGR codes for the prefixes, one job after the other: cyan, yellow, magenta, green, blue. Red is left for errors."""


def shows_output() -> bool:
    """Whether this program shows its jobs' output: by FRAY_LOG_TO_DRIVER, else if it is in a terminal or notebook."""
    setting = read_variable(SWITCH_VARIABLE)
    return setting != "0" if setting else _is_interactive(sys.stdout)


def _is_interactive(stream: object) -> bool:
    """Whether a person sees what is written to the stream: in a terminal, or a notebook, whose streams are no TTYs."""
    return notebook() is not None or bool(stream is not None and getattr(stream, "isatty", bool)())


class JobPrefix:
    """The prefix of each line of a job. The next job's prefix has another colour."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._color = next(_colors)

    def by_stream(self, attempt: int, replica: int | None = None) -> Mapping[str, str]:
        """The prefix for each stream, in colour in terminals and notebooks unless NO_COLOR is set.

        replica: number of the replica that wrote the line, if the job is a gang.
        """
        name = self._job_id if replica is None else f"{self._job_id} [{replica}]"
        plain = f"({name})" if attempt == 1 else f"({name} #{attempt})"
        colored = f"\x1b[{self._color}m{plain}\x1b[0m"
        return {
            name: f"{colored if _is_interactive(getattr(sys, name)) and 'NO_COLOR' not in os.environ else plain} "
            for name in STREAMS
        }


class LineEcho:
    """Shows the output of a task that is a thread of this process at once, in whole lines behind the job's id.

    Text with carriage returns, such as a progress bar, is shown unchanged.
    """

    def __init__(self, job_id: str, attempt: int, replica: int | None = None) -> None:
        self._prefix = JobPrefix(job_id).by_stream(attempt, replica)
        self._unfinished: dict[str, tuple[TextIO, str]] = {}
        self._lock = threading.RLock()  # writing may run a finalizer that prints

    def write(self, name: str, stream: TextIO, text: str) -> None:
        """Show the lines that `text` completes on the stream of this name."""
        if "\r" in text:
            stream.write(text)
            return
        with self._lock:
            _, before = self._unfinished.get(name, (stream, ""))
            *lines, rest = (before + text).split("\n")
            self._unfinished[name] = stream, rest
        if lines:
            with above_line():
                stream.write("".join(f"{self._prefix[name]}{line}\n" for line in lines))

    def end(self) -> None:
        """Show the lines that the task has left incomplete."""
        for name, (stream, rest) in list(self._unfinished.items()):
            if rest:
                self.write(name, stream, "\n")


class LogPrinter:
    """The thread that writes to the terminal. All clusters of a process share it, and the first line starts it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queued: list[tuple[str, str]] = []
        self._left_out = 0
        self._states: dict[object, Callable[[], None]] = {}
        self._printing = False
        self._context = copy_context()
        self._thread: threading.Thread | None = None
        self._follows_cells = False

    def belong_here(self) -> None:
        """Print in the caller's context from now on, and in a notebook in that of each cell that runs later.

        A notebook shows output under the cell in whose context it is printed.
        """
        self._context = copy_context()
        shell = notebook()
        if shell is not None and not self._follows_cells:
            self._follows_cells = True
            shell.events.register("pre_run_cell", lambda info: self.belong_here())

    def put(self, lines: Iterable[tuple[str, str]]) -> None:
        """Queue lines for printing, each with its stream, "stdout" or "stderr"; returns at once."""
        with self._changed:
            for line in lines:
                if len(self._queued) < MAX_QUEUED_LINES:
                    self._queued.append(line)
                else:
                    self._left_out += 1
            self._wake()

    def update(self, subject: object, show: Callable[[], None]) -> None:
        """Queue a call of `show`, which shows the state of `subject`, in place of an earlier one; returns at once."""
        with self._changed:
            self._states[subject] = show
            self._wake()

    def flush(self, timeout: float) -> None:
        """Wait until everything queued is printed, at most `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._queued or self._states or self._printing), timeout)

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = start_loop(self._work, "fray-output")
        self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queued or self._states)
                lines, self._queued = self._queued, []
                states, self._states = self._states, {}
                left_out, self._left_out = self._left_out, 0
                self._printing = True
            if left_out:
                lines.append(("stderr", f"fray: {left_out:,} lines of jobs are left out: this terminal is too slow"))
            try:
                self._context.copy().run(_print, lines)
                for show in states.values():
                    self._context.copy().run(show)
            except Exception as error:  # the program may have replaced a stream or a log's handler by anything
                log.debug("the output of jobs cannot be shown: %s", error)
            with self._changed:
                self._printing = False
                self._changed.notify_all()


def _print(lines: Iterable[tuple[str, str]]) -> None:
    for name, group in groupby(lines, lambda line: line[0]):
        stream = getattr(sys, name)
        with above_line():
            stream.write("".join(f"{text}\n" for _, text in group))
            stream.flush()


printer = PerProcess(LogPrinter)


def post(line: WaitLine, progress: str, why: str) -> None:
    """Have the printer's thread show a wait's progress on its line; returns at once. See `WaitLine.show`."""
    printer.value.update(line, partial(line.show, progress, why))
