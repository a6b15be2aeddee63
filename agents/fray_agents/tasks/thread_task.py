"""Tasks as threads of this process, for a private cluster: they start quickly, and are not isolated.

**Variables.** Jobs in threads share `os.environ`, so jobs with different values cannot run at once. Only the agent's
thread sets them, so there is no lock.

**Logs.** `sys.stdout` and `sys.stderr` also write to the log of the task whose code prints. A context variable
identifies that task. It covers the task's own thread, its coroutines and the calls that it serves as an actor, but not
threads that user code starts. The first task wraps the process's streams, and they stay wrapped: `print` holds no
reference to its stream, and the interpreter crashes if a stream is replaced and freed while another thread prints to
it.

**Tasks.** A thread's FRAY_* variables are in a context variable (`current_task`). Variables that its job asks for are
set for the whole process while it runs. It cannot be killed: a stop raises `SystemExit` in it at its next Python
instruction, unless it asked for a call instead (`on_stop`). When the grace is over the attempt counts as ended, and the
thread goes on until it returns.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import pickle
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol, TextIO

from fray_agents.runner.exit_report import MESSAGE_LIMIT, shortened
from fray_agents.runner.task_log import CHUNK_BYTES, STREAMS, LineFormatter, LogChunks, chunk_name
from fray_agents.tasks.callable_main import encode_result, exception_fields, failure_fields
from fray_agents.tasks.output_files import FoundOutputs, find_outputs
from fray_agents.tasks.process_task import ProcessTask
from fray_agents.tasks.task_handle import (
    ResultFile,
    StartFailed,
    TaskExit,
    TaskFile,
    TaskHandle,
    TaskSpec,
    read_task_file,
)
from fray_layouts.errors import Permanent
from fray_layouts.records import AttemptExit, ResourceUsage
from fray_layouts.states import ExitKind
from fray_runtime import current_task
from fray_runtime.directories import remove_tree
from fray_runtime.threads import new_thread

log = logging.getLogger("fray")

_holders: Counter[tuple[str, str]] = Counter()
_before: dict[str, str | None] = {}


class EnvironConflict(Permanent):
    """Two jobs in threads that run at once ask for different values of a variable in `os.environ`, which they share."""


def acquire(variables: Mapping[str, str]) -> None:
    """Set the variables, all or none, until every holder has released them. Raises EnvironConflict."""
    for name, value in variables.items():
        if name in _before and not _holders[name, value]:
            raise EnvironConflict(
                f"{name} has another value in a job that runs now. Jobs in threads share `os.environ`: run jobs with "
                "different values one after the other, or as processes."
            )
    for name, value in variables.items():
        if name not in _before:
            _before[name] = os.environ.get(name)
            os.environ[name] = value
        _holders[name, value] += 1


def release(variables: Mapping[str, str]) -> None:
    """Release variables of `acquire`: the values from before return, unless somebody changed them meanwhile."""
    for name, value in variables.items():
        _holders[name, value] -= 1
        if _holders[name, value]:
            continue
        del _holders[name, value]
        before = _before.pop(name)
        if os.environ.get(name) == value:
            _restore(name, before)


def _restore(name: str, value: str | None) -> None:
    if value is None:
        del os.environ[name]
    else:
        os.environ[name] = value


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

    Args:
        echo: how the process's own streams show what the task prints; None: unchanged.
        secrets: values that the log does not show.
    """

    def __init__(self, directory: Path, echo: Echo | None = None, secrets: Sequence[str] = ()) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.echo = echo
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self._lines = {name: LineFormatter(name, secrets) for name in STREAMS}
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


class ThreadTask:
    """A callable in a thread; see `TaskHandle` for the other methods. A command still runs as a process.

    echo: as for `ThreadLog`.
    """

    def __init__(self, spec: TaskSpec, echo: Echo | None = None) -> None:
        self.usage: ResourceUsage | None = None  # a thread's share of its process is unknown
        self.unkilled: list[int] = []
        self.exit: asyncio.Future[TaskExit] = asyncio.get_running_loop().create_future()
        self._spec = spec
        self._loop = asyncio.get_running_loop()
        self._why = ""
        self._on_stop: Callable[[], None] = self._interrupt
        self._stopping = threading.Lock()
        self._interrupting = threading.Lock()
        self._may_interrupt = True
        self._log = ThreadLog(spec.directory / "log", echo, spec.secrets)
        self._thread = new_thread(self._work, spec.env["FRAY_JOB_ID"], self._failed)
        if spec.timeout is not None:
            self._loop.call_later(spec.timeout, self.stop, spec.grace, ExitKind.TIMEOUT)

    @classmethod
    async def start(cls, spec: TaskSpec, deadline: float, lock_fd: int | None, echo: Echo | None = None) -> TaskHandle:
        """As `ProcessTask.start`; the deadline has no effect, because no thread outlives its agent's process."""
        if spec.callable_pickle is None:
            return await ProcessTask.start(spec, deadline, lock_fd)
        started = cls(spec, echo)
        started._begin()
        return started

    def set_deadline(self, boottime: float) -> None:
        """Do nothing; see `start`."""

    def stop(self, grace: float, why: str) -> None:
        """Ask the thread to end; after `grace` seconds the attempt counts as ended."""
        if self.exit.done():
            return
        self._loop.call_later(grace, self.kill)
        with self._stopping:
            self._why = self._why or why
            try:
                self._on_stop()
            except Exception:
                log.exception("%s could not be asked to end", self._thread.name)

    def call_on_stop(self, call: Callable[[], None]) -> None:
        """Make a stop call `call` instead of interrupting the thread; call it at once if it was already stopped."""
        with self._stopping:
            self._on_stop = call
            if self._why:
                call()

    def _interrupt(self) -> None:
        with self._interrupting:
            if self._may_interrupt and (thread := self._thread.ident) is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SystemExit))

    def kill(self) -> None:
        """Count the attempt as ended, whatever the thread does."""
        message = "a thread cannot be killed: it goes on until it returns"
        self._end(TaskExit(AttemptExit(kind=self._why or ExitKind.STOPPED, message=message, log_chunks=0), None, False))

    def chunks(self) -> AsyncIterator[tuple[int, TaskFile]]:
        """See `TaskHandle.chunks`."""
        return self._log.chunks()

    async def wait(self) -> None:
        """Return when the attempt has ended."""
        await asyncio.shield(self.exit)

    def find_outputs(self, patterns: Sequence[str]) -> FoundOutputs:
        """See `TaskHandle.find_outputs`."""
        return find_outputs(self._spec.start_folder, patterns)

    def read_file(self, name: str) -> bytes | None:
        """See `TaskHandle.read_file`."""
        return read_task_file(self._spec.directory, name)

    async def discard(self) -> None:
        """See `TaskHandle.discard`."""
        await remove_tree(self._spec.directory)

    def _begin(self) -> None:
        try:
            acquire(self._spec.variables)
        except EnvironConflict as error:
            self._finish(TaskExit(AttemptExit(kind=ExitKind.EXCEPTION, message=str(error)), None, True))
            return
        _running.add(self)
        tee_process_streams()
        try:
            self._thread.start()
        except RuntimeError as error:  # the process has too many threads
            self._end(TaskExit(AttemptExit(kind=ExitKind.START_FAILED), None, False))
            raise StartFailed(f"no thread could be started on this host: {error}") from error

    def _work(self) -> None:
        current_task.thread_environ.set(self._spec.env)
        current_task.thread_task.set(self)
        current_log.set(self._log)
        try:
            end = self._call()
        except SystemExit as error:  # raised by the callable itself, or by `stop` in it
            end = self._exit_of(error)
        except BaseException as error:
            end = _host_failed(error)
        with self._interrupting:  # once this thread has ended, a new one may have its identity
            self._may_interrupt = False
        current_log.set(None)
        if self._log.echo is not None:
            self._log.echo.end()
        self._end_soon(end)

    def _failed(self, error: BaseException) -> None:
        self._end_soon(self._exit_of(error) if isinstance(error, SystemExit) else _host_failed(error))

    def _end_soon(self, end: TaskExit) -> None:
        with suppress(RuntimeError):  # the loop is closed: the agent has left, and other agents end the attempt
            self._loop.call_soon_threadsafe(self._end, end)

    def _call(self) -> TaskExit:
        try:
            function, args, kwargs = pickle.loads(self._spec.callable_pickle or b"")
            encoding, data = encode_result(function(*args, **kwargs), self._spec.result_limit)
        except SystemExit:
            raise
        except BaseException as error:
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this function
            self._log.write("stderr", "".join(traceback.format_exception(error)))
            return TaskExit(AttemptExit(**failure_fields(error)), None, True)
        path = self._spec.directory / f"result.{encoding}"
        try:
            path.write_bytes(data)
        except FileNotFoundError:
            if not self.exit.done():
                raise
            raise SystemExit from None  # the attempt was over before its thread was: the result is not needed
        return TaskExit(AttemptExit(kind=ExitKind.SUCCESS), ResultFile(path, encoding, len(data)), not self._why)

    def _exit_of(self, error: SystemExit) -> TaskExit:
        if self._why:
            return TaskExit(AttemptExit(kind=self._why, message="its thread was asked to end, and did"), None, False)
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if code:
            text = "" if isinstance(error.code, int) else str(error.code)
            self._log.write("stderr", text and f"{text}\n")
            message = shortened(f"exit code {code}{text and f': {text}'}", MESSAGE_LIMIT)
            return TaskExit(AttemptExit(kind=ExitKind.EXITED, code=code, message=message), None, True)
        return TaskExit(AttemptExit(kind=ExitKind.SUCCESS, code=code), None, True)

    def _end(self, end: TaskExit) -> None:
        if self in _running:
            release(self._spec.variables)
            _running.remove(self)
            self._finish(end)

    def _finish(self, end: TaskExit) -> None:
        try:
            self._log.close()
        except Exception as error:
            end = _host_failed(error)
        self.exit.set_result(end)


def _host_failed(error: BaseException) -> TaskExit:
    """The end of an attempt that an exception outside its callable ended."""
    fields = exception_fields(error)
    message = f"the host failed while the task ran: {fields['message']}"
    return TaskExit(AttemptExit(kind=ExitKind.HOST_FAILED, message=message, traceback=fields["traceback"]), None, False)


_running: set[ThreadTask] = set()
