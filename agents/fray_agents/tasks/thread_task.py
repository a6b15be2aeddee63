"""Tasks as threads of this process, for a private cluster: they start quickly, and are not isolated.

A thread shares the process's environment. Its FRAY_* variables are in a context variable (`current_task`). Variables
that its job asks for are set for the whole process while it runs (`shared_environ`). Its output goes to the process's
streams and into its log (`thread_output`). It cannot be killed: a stop raises `SystemExit` in it at its next Python
instruction, unless it asked for a call instead (`on_stop`). When the grace is over the attempt counts as ended, and the
thread goes on until it returns.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import pickle
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from fray_agents.host.directories import remove_tree
from fray_agents.runner.exit_report import MESSAGE_LIMIT, shortened
from fray_agents.tasks import current_task, shared_environ, thread_output
from fray_agents.tasks.callable_main import encode_result, exception_fields, failure_fields
from fray_agents.tasks.handle import ResultFile, StartFailed, TaskExit, TaskFile, TaskHandle, TaskSpec, read_task_file
from fray_agents.tasks.outputs import FoundOutputs, find_outputs
from fray_agents.tasks.process_task import ProcessTask
from fray_agents.threads import new_thread
from fray_layouts.records import AttemptExit, ResourceUsage
from fray_layouts.states import ExitKind

log = logging.getLogger("fray")


class ThreadTask:
    """A callable in a thread; see `TaskHandle` for the other methods. A command still runs as a process.

    echo: as for `ThreadLog`.
    """

    def __init__(self, spec: TaskSpec, echo: thread_output.Echo | None = None) -> None:
        self.usage: ResourceUsage | None = None  # a thread's share of its process is unknown
        self.unkilled: list[int] = []
        self.exit: asyncio.Future[TaskExit] = asyncio.get_running_loop().create_future()
        self._spec = spec
        self._loop = asyncio.get_running_loop()
        self._why = ""
        self._on_stop: Callable[[], None] = self._interrupt
        self._stopping = threading.Lock()
        self._log = thread_output.ThreadLog(spec.directory / "log", echo)
        self._thread = new_thread(self._work, spec.env["FRAY_JOB_ID"], self._failed)
        if spec.timeout is not None:
            self._loop.call_later(spec.timeout, self.stop, spec.grace, ExitKind.TIMEOUT)

    @classmethod
    async def start(
        cls, spec: TaskSpec, deadline: float, lock_fd: int | None, echo: thread_output.Echo | None = None
    ) -> TaskHandle:
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
        if self._thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(SystemExit))

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
            shared_environ.acquire(self._spec.variables)
        except shared_environ.EnvironConflict as error:
            self._finish(TaskExit(AttemptExit(kind=ExitKind.EXCEPTION, message=str(error)), None, True))
            return
        _running.add(self)
        thread_output.tee_process_streams()
        try:
            self._thread.start()
        except RuntimeError as error:  # the process has too many threads
            self._end(TaskExit(AttemptExit(kind=ExitKind.START_FAILED), None, False))
            raise StartFailed(f"no thread could be started on this host: {error}") from error

    def _work(self) -> None:
        current_task.thread_environ.set(self._spec.env)
        current_task.thread_task.set(self)
        thread_output.current_log.set(self._log)
        try:
            end = self._call()
        except SystemExit as error:  # raised by the callable itself, or by `stop` in it
            end = self._exit_of(error)
        except BaseException as error:
            end = _host_failed(error)
        thread_output.current_log.set(None)
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
            shared_environ.release(self._spec.variables)
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
