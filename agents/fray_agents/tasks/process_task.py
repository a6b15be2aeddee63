"""A task as a tree of processes: starts its runner, sends the agent's requests, and receives the runner's events.

Nothing here blocks the event loop. When the agent dies its pipe to the runner closes, and the runner kills the task.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from fray_agents import runner
from fray_agents.host.container_engine import EngineFailed
from fray_agents.runner.exit_report import too_large, unreadable_result
from fray_agents.runner.task_cgroup import HOST_OOM_COUNTER, TaskCgroup
from fray_agents.runner.task_log import CHUNK_BYTES, PART, chunk_name
from fray_agents.runner.untrusted_files import file_size, read_file
from fray_agents.tasks import container_main
from fray_agents.tasks.container import TaskContainer
from fray_agents.tasks.force_kill import end_leftovers, kill_tree
from fray_agents.tasks.output_files import FoundOutputs, find_outputs
from fray_agents.tasks.task_handle import ResultFile, StartFailed, TaskExit, TaskFile, TaskSpec, read_task_file
from fray_coordinator.concurrency import start_task
from fray_layouts.errors import Malformed
from fray_layouts.parsing import MAX_RESULT_DEPTH, parse_json
from fray_layouts.records import AttemptExit, ResourceUsage
from fray_layouts.states import ExitKind
from fray_runtime.current_task import TASK_DIR_VAR
from fray_runtime.directories import remove_tree
from fray_runtime.forks import without_forks

EVENT_LIMIT = 1024**2
"""Most bytes of one event from the runner; the longest is an exit, whose texts `exit_report` bounds."""

_OUTPUT_GRACE = 1.0
"""Seconds after a runner's end in which its output is still read: all of it is in the pipe already."""

_RUNNER_COMMAND = [os.path.realpath(sys.executable), "-I", "-S", str(Path(runner.__file__).parent)]


async def start_runner(
    lock_fd: int | None,
    cgroup_prefix: str = "",
    prestart_command: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    kept_fds: Sequence[int] = (),
) -> asyncio.subprocess.Process:
    """Start a runner, which waits for its request.

    Args:
        cgroup_prefix: see `ProcessTask.start`.
        prestart_command: starts the task's process in advance, with `env`; see `fray_agents.runner.spawn`.
        kept_fds: further descriptors that stay open until it ends, by which others see that it still runs.
    """
    kept = [*([] if lock_fd is None else [lock_fd]), *kept_fds]
    loop = asyncio.get_running_loop()
    starting = loop.subprocess_exec(
        lambda: _RunnerProtocol(EVENT_LIMIT, loop),
        *_RUNNER_COMMAND,
        ",".join(map(str, kept)),
        cgroup_prefix,
        *prestart_command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=None,
        start_new_session=True,  # Ctrl-C at the agent's terminal is for the agent
        pass_fds=kept,
        env=env,
    )
    transport, protocol = await without_forks(starting)
    return asyncio.subprocess.Process(transport, protocol, loop)


class _RunnerProtocol(asyncio.subprocess.SubprocessStreamProtocol):
    """Closes the runner's output soon after the runner's end, even if another process holds the pipe open.

    A library may have forked after the pipe was created and before the runner was started. Its child then has the
    runner's end too, and would keep the task from ever ending; it may even be waiting for that task.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._output = cast(asyncio.SubprocessTransport, transport).get_pipe_transport(1)  # uvloop's has no class
        super().connection_made(transport)

    def process_exited(self) -> None:
        assert self._output is not None
        asyncio.get_running_loop().call_later(_OUTPUT_GRACE, self._output.close)
        super().process_exited()


RUNNER_TIMEOUT = 5.0
"""Seconds after a task should have ended until the agent kills it without its runner: a runner answers within
milliseconds, and one that is stopped or stuck never does."""

START_TIMEOUT = 60.0
"""Seconds that a start may take: a directory, a fork and an exec, on a host that may be swapping."""

_JSON_LIMIT = 4 * 1024**2
"""Bytes up to which a command's result is parsed to see whether it is JSON: a tenth of a second in a thread."""

CALLABLE_OPTIONS = ["-m", "fray_agents.tasks.callable_main"]
"""The options of an interpreter that runs a callable, without the arguments."""

_NO_ANSWER = "its runner did not answer in time, and the agent has killed it and all its processes"


class ProcessTask:
    """A task as a tree of processes, with its runner; created by `start`. See `TaskHandle` for the other methods.

    Attributes:
        pid: of the task's main process; None if its program could not be executed.
        runner_pid: of its runner.

    The runner ends the task. If the runner does not answer in time, or answers nonsense, the agent ends it.
    """

    def __init__(
        self,
        spec: TaskSpec,
        process: asyncio.subprocess.Process,
        cgroup_prefix: str = "",
        container: TaskContainer | None = None,
    ) -> None:
        self.pid: int | None = None
        self.runner_pid = process.pid
        self.usage: ResourceUsage | None = None
        self.unkilled: list[int] = []
        self.exit: asyncio.Future[TaskExit] = asyncio.get_running_loop().create_future()
        self._spec = spec
        self._process = process
        self._cgroup = TaskCgroup(cgroup_prefix and f"{cgroup_prefix}{process.pid}")
        self._container = container
        self._announced = 0
        self._chunks: asyncio.Queue[int | None] = asyncio.Queue()
        self._has_begun = asyncio.Event()
        self._deadline = math.inf
        self._cause = self._message = ""
        self._watches: list[asyncio.TimerHandle] = []
        self._killing: asyncio.Task[None] | None = None
        self._listener = start_task(self._listen(), self._listening_failed)

    @classmethod
    async def start(
        cls,
        spec: TaskSpec,
        deadline: float,
        lock_fd: int | None,
        runner: asyncio.subprocess.Process | None = None,
        cgroup_prefix: str = "",
    ) -> ProcessTask:
        """Start a task; returns when it runs or has already ended.

        Args:
            spec: the attempt to run.
            deadline: CLOCK_BOOTTIME in seconds at which it is killed; see `set_deadline`.
            lock_fd: descriptor of a held lock, which stays held as long as the task runs.
            runner: a process from `start_runner` with the same `cgroup_prefix`; by default a new one.
            cgroup_prefix: prefix from `fray_agents.host.task_cgroups`; "": the task gets no cgroup of its own.

        Raises:
            StartFailed: this host cannot run it, which is not the job's fault.
        """
        try:
            task = await cls._with_runner(spec, lock_fd, runner, cgroup_prefix)
        except OSError as error:
            raise StartFailed(f"the task's runner could not be started on this host: {error}") from error
        try:
            async with asyncio.timeout(START_TIMEOUT):
                await task._begin(deadline)
        except TimeoutError as error:
            await task._give_up()
            raise StartFailed(f"the task did not start within {START_TIMEOUT:g} s on this host") from error
        except EngineFailed as error:
            await task._give_up()
            raise StartFailed(f"the task's container could not be created on this host: {error}") from error
        except OSError as error:
            await task._give_up()
            raise StartFailed(f"the task's directory could not be created on this host: {error}") from error
        except BaseException:
            await task._give_up()
            raise
        if task.exit.done() and (end := task.exit.result().exit).kind == ExitKind.START_FAILED:
            await task.wait()
            raise StartFailed(end.message)
        return task

    @classmethod
    async def _with_runner(
        cls, spec: TaskSpec, lock_fd: int | None, runner: asyncio.subprocess.Process | None, cgroup_prefix: str
    ) -> ProcessTask:
        if spec.container is None:
            runner = runner or await start_runner(lock_fd, cgroup_prefix, kept_fds=spec.held)
            return cls(spec, runner, cgroup_prefix)
        container = TaskContainer(spec.container)
        async with container.guarded(lock_fd) as fd:
            runner = await start_runner(lock_fd, cgroup_prefix, kept_fds=[*spec.held, fd])
            return cls(spec, runner, cgroup_prefix, container)

    async def _begin(self, deadline: float) -> None:
        spec = self._spec
        await asyncio.to_thread(_prepare_directory, spec)
        self._deadline = deadline
        request = _start_request(spec, deadline)
        if self._container is not None:
            await self._container.create(request["command"], request["env"], spec.directory, str(spec.start_folder))
            request |= {"command": self._container.start_command, "env": dict(os.environ), "cwd": ""}
        self._send(**request)
        if self._spec.timeout is not None:
            self._expect_end(self._spec.timeout + self._spec.grace, ExitKind.TIMEOUT)
        await self._has_begun.wait()

    async def _give_up(self) -> None:
        self._take_over(ExitKind.START_FAILED)
        await self.wait()

    def set_deadline(self, boottime: float) -> None:
        """See `TaskHandle.set_deadline`; the runner enforces it."""
        if time.clock_gettime(time.CLOCK_BOOTTIME) > self._deadline + RUNNER_TIMEOUT:
            self._take_over(ExitKind.PREEMPTED)  # the job may have another holder
            return
        self._deadline = boottime
        self._send(deadline=boottime)

    def stop(self, grace: float, why: str) -> None:
        """See `TaskHandle.stop`."""
        self._send(stop=grace, why=why)
        self._expect_end(grace, why)

    def kill(self) -> None:
        """Send SIGKILL to the whole tree."""
        self._send(kill=True)
        self._expect_end(0.0, ExitKind.STOPPED)

    async def chunks(self) -> AsyncIterator[tuple[int, TaskFile]]:
        """See `TaskHandle.chunks`."""
        while (number := await self._chunks.get()) is not None:
            yield number, TaskFile(self._log_path(number), 2 * CHUNK_BYTES)

    async def wait(self) -> None:
        """Return when the runner, and with it every process of the task, has ended."""
        await asyncio.shield(self._listener)

    def find_outputs(self, patterns: Sequence[str]) -> FoundOutputs:
        """See `TaskHandle.find_outputs`."""
        return find_outputs(self._spec.start_folder, patterns)

    def read_file(self, name: str) -> bytes | None:
        """See `TaskHandle.read_file`."""
        return read_task_file(self._spec.directory, name)

    async def discard(self) -> None:
        """See `TaskHandle.discard`."""
        await remove_tree(self._spec.directory)

    def _send(self, **message: Any) -> None:
        if not self._stdin.is_closing():
            self._stdin.write(json.dumps(message).encode() + b"\n")

    @property
    def _stdin(self) -> asyncio.StreamWriter:
        assert self._process.stdin is not None
        return self._process.stdin

    async def _listen(self) -> None:
        """Handle the runner's events until nothing of the task is left; sets `exit` in any case."""
        try:
            await self._handle_events()
        except asyncio.CancelledError:  # the loop ends: the runner kills the task and exits
            self._stdin.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), RUNNER_TIMEOUT)
            raise
        except Exception as error:
            self._take_over(ExitKind.HOST_FAILED, f"the agent could not understand the task's runner: {error!r}")
            await self._drain()
        self._stdin.close()
        code = await self._process.wait()
        if self._container is not None:
            await self._container.wait_removed()
        for watch in self._watches:
            watch.cancel()
        if not self.exit.done():
            await end_leftovers(self._spec.directory, self._cgroup, self._note_unkilled)
            self._set_lost_exit(code)
        self._chunks.put_nowait(None)
        self._has_begun.set()

    def _listening_failed(self, error: BaseException) -> None:
        """End the attempt, because nobody hears any more how the task ends; its runner ends it at its deadline."""
        if not self.exit.done():
            message = f"the agent could not watch the task's end: {error!r}"
            self.exit.set_result(TaskExit(AttemptExit(kind=ExitKind.HOST_FAILED, message=message), None, False))
        self._chunks.put_nowait(None)
        self._has_begun.set()

    async def _handle_events(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            await self._handle(msgspec.json.decode(line))

    async def _drain(self) -> None:
        """Read and ignore the runner's output until it ends: before that, the process cannot be waited for."""
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):  # the output has ended then, too
            while await self._process.stdout.read(EVENT_LIMIT):
                pass

    def _expect_end(self, within: float, why: str) -> None:
        """End the task without its runner if it has not ended `within` seconds and `RUNNER_TIMEOUT` from now."""
        watch = asyncio.get_running_loop().call_later(within + RUNNER_TIMEOUT, self._take_over, why)
        self._watches.append(watch)

    def _take_over(self, cause: str, message: str = _NO_ANSWER) -> None:
        """End the task without its runner; the first cause stands."""
        if self._killing is None:
            self._cause, self._message = cause, message
            self._killing = start_task(kill_tree(self._process, self._note_unkilled))

    def _note_unkilled(self, pids: list[int]) -> None:
        self.unkilled = pids

    async def _handle(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "started":
                self.pid = msgspec.convert(event["pid"], int)
                self._has_begun.set()
            case "usage":
                self.usage = msgspec.convert(event["usage"], ResourceUsage)
            case "chunk":
                self._announce(event["number"])
            case "exit":
                await self._on_exit(msgspec.convert(event["exit"], AttemptExit), event["complete_before_stop"])

    async def _on_exit(self, end: AttemptExit, complete_before_stop: bool) -> None:
        result = None
        try:
            if end.kind == ExitKind.SUCCESS:
                result = await asyncio.to_thread(_find_result, self._spec)
        except OSError as error:
            end = AttemptExit(kind=ExitKind.EXITED, code=0, message=unreadable_result(error), usage=end.usage)
        if result is not None and result.size > self._spec.result_limit:
            message = too_large(result.size, self._spec.result_limit)
            end, result = AttemptExit(kind=ExitKind.TOO_LARGE, code=0, message=message, usage=end.usage), None
        self.usage = end.usage or self.usage
        self.exit.set_result(TaskExit(end, result, complete_before_stop))
        self._expect_end(0.0, end.kind)  # the runner has nothing left to do

    def _set_lost_exit(self, code: int) -> None:
        """Set the exit of a task whose runner was killed, and keep its last log chunk."""
        part = self._log_path(self._announced + 1)
        with contextlib.suppress(OSError):  # there is none, or it cannot be kept
            os.rename(f"{part}{PART}", part)
            self._announce(self._announced + 1)
        outside = f"the task's runner was ended from outside (exit code {code}), and the task with it"
        kind, message = (self._cause, self._message) if self._cause else (ExitKind.LOST, outside)
        end = AttemptExit(kind=kind, message=message, log_chunks=self._announced)
        self.exit.set_result(TaskExit(end, None, False))

    def _announce(self, number: int) -> None:
        self._announced = number
        self._chunks.put_nowait(number)

    def _log_path(self, number: int) -> Path:
        return self._spec.directory / "log" / chunk_name(number)


def _start_request(spec: TaskSpec, deadline: float) -> dict[str, Any]:
    """The fields of `fray_agents.runner.agent_pipe.StartRequest`."""
    python_path = [str(path) for path in spec.python_path]
    env = {**spec.env, TASK_DIR_VAR: str(spec.directory)}
    if spec.command:
        env["FRAY_RESULT"] = str(spec.directory / "result")
    if python_path:
        env["PYTHONPATH"] = os.pathsep.join([*python_path, *filter(None, [env.get("PYTHONPATH")])])
    python = [spec.python, *CALLABLE_OPTIONS]
    if spec.container is not None and spec.container.layer is not None:
        python = ["python3", container_main.__file__, *map(str, spec.container.layer)]
    call = [*python, str(spec.directory), str(spec.result_limit)]
    return {
        "directory": str(spec.directory),
        "command": spec.command or call,
        "is_call": spec.command is None,
        "stdin": str(spec.directory / "stdin") if spec.stdin is not None else os.devnull,
        "env": env,
        "secrets": list(spec.secrets),
        "python_path": python_path,
        "preamble": str(spec.preamble or ""),
        "cwd": spec.cwd or "",
        "timeout": spec.timeout,
        "grace": spec.grace,
        "deadline": deadline,
        "result_limit": spec.result_limit,
        "spool_limit": spec.spool_limit,
        "seal_interval": spec.seal_interval,
        "in_container": spec.container is not None,
        "limits": vars(spec.limits),
        "oom_counter": str(spec.oom_counter or (HOST_OOM_COUNTER if spec.container is not None else "")),
    }


def _prepare_directory(spec: TaskSpec) -> None:
    spec.directory.mkdir(parents=True, exist_ok=True)
    if spec.callable_pickle is not None:
        (spec.directory / "call.pickle").write_bytes(spec.callable_pickle)
    if spec.stdin is not None:
        (spec.directory / "stdin").write_bytes(spec.stdin)


def _find_result(spec: TaskSpec) -> ResultFile | None:
    """The task's result file. Raises OSError if it is not a regular file."""
    if spec.command is not None:
        return _result_file(spec.directory / "result", "bytes")
    as_json = _result_file(spec.directory / "result.json", "json")
    return as_json or _result_file(spec.directory / "result.pickle", "pickle")


def _result_file(path: Path, encoding: str) -> ResultFile | None:
    """The file at `path`, if there is one; it counts as JSON if it is at most `_JSON_LIMIT` long and parses."""
    try:
        size = file_size(str(path))
    except FileNotFoundError:
        return None
    if encoding != "pickle" and size <= _JSON_LIMIT:
        try:
            parse_json(read_file(str(path), _JSON_LIMIT), MAX_RESULT_DEPTH)
            encoding = "json"
        except Malformed:
            encoding = "bytes"
    return ResultFile(path, encoding, size)
