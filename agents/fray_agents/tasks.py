"""The agent's side of a task: starts its runner, passes on the agent's wishes, and hears how it goes.

Nothing here blocks the event loop. The agent's death closes the pipe, which the runner takes as the order to kill the
task.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fray_agents import runner
from fray_agents.hostdirs import remove
from fray_agents.runner.log import PART, chunk_name
from fray_layouts.errors import Malformed, Temporary
from fray_layouts.parsing import DEEPEST_RESULT, parse_json
from fray_layouts.records import Exit, Usage

RESULT_LIMIT = 256 * 1024**2
SPOOL_LIMIT = 1024**3
# A command's result is looked into, to see whether it is JSON, up to this size.
_JSON_LIMIT = 4 * 1024**2
_EVENT_LIMIT = 1024**2
CALL = [sys.executable, "-m", "fray_agents.task"]
"""The command of a callable's process, but for its arguments."""

_RUNNER = [os.path.realpath(sys.executable), "-I", "-S", str(Path(runner.__file__).parent)]


class StartFailed(Temporary):
    """The task could not be started on this host; it may start on another one."""


@dataclass(frozen=True)
class TaskSpec:
    """One attempt to run.

    Attributes:
        directory: made by `start`, removed by `discard`; its own for each attempt.
        command: program and arguments, or
        callable_pickle: cloudpickle of (function, args, kwargs).
        env: the task's complete environment; a command gets `FRAY_RESULT`, where it may leave a result, besides.
        variables: those of `env` that the job itself asked for.
        timeout: seconds it may run.
        grace: seconds between SIGTERM and SIGKILL when the timeout has passed.
        cwd: where it starts; by default a fresh `work/` in the directory.
        result_limit: bytes that its result may have.
        spool_limit: bytes of log chunks on disk beyond which the task's output waits.
        oom_counter: file whose `oom_kill` line tells of out-of-memory kills; by default the one of the own cgroup.
    """

    directory: Path
    command: list[str] | None
    callable_pickle: bytes | None
    env: dict[str, str]
    timeout: float | None
    grace: float
    variables: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    result_limit: int = RESULT_LIMIT
    spool_limit: int = SPOOL_LIMIT
    oom_counter: Path | None = None


@dataclass(frozen=True)
class ResultFile:
    """What the task returned. encoding: as in `Result`; size in bytes."""

    path: Path
    encoding: str
    size: int


@dataclass(frozen=True)
class TaskExit:
    """How it ended. complete_before_stop: it had succeeded before anything was done to end it."""

    exit: Exit
    result: ResultFile | None
    complete_before_stop: bool


class Task:
    """A task and its runner; made by `start`.

    Attributes:
        pid: of the task's main process; None if its program could not be executed.
        runner_pid: of its runner.
        usage: the latest sample.
        exit: how it ended; set once, when no process of the task is left.
    """

    def __init__(self, spec: TaskSpec, process: asyncio.subprocess.Process) -> None:
        self.pid: int | None = None
        self.runner_pid = process.pid
        self.usage = Usage()
        self.exit: asyncio.Future[TaskExit] = asyncio.get_running_loop().create_future()
        self._spec = spec
        self._process = process
        self._announced = 0
        self._chunks: asyncio.Queue[int | None] = asyncio.Queue()
        self._begun = asyncio.Event()
        self._listener = asyncio.create_task(self._listen())

    @classmethod
    async def start(
        cls,
        spec: TaskSpec,
        deadline: float,
        lock_fd: int | None,
        runner: asyncio.subprocess.Process | None = None,
    ) -> Task:
        """Start `spec`'s task; returns when it runs, or has ended already.

        Args:
            deadline: CLOCK_BOOTTIME in seconds at which it is killed; see `set_deadline`.
            lock_fd: descriptor of a held lock that stays held as long as the task runs.
            runner: one that `start_runner` has started; by default a new one.

        Raises:
            StartFailed: this host cannot run it; that is not the job's fault.
        """
        try:
            await asyncio.to_thread(_furnish, spec)
            task = cls(spec, runner or await start_runner(lock_fd))
        except OSError as error:
            raise StartFailed(f"the task's runner could not be started on this host: {error}") from error
        try:
            task._send(**_order(spec, deadline))
            await task._begun.wait()
        except BaseException:
            task._stdin.close()  # the runner kills what it has started
            raise
        if task.exit.done() and (end := task.exit.result().exit).kind == "start-failed":
            await task.gone()
            raise StartFailed(end.message)
        return task

    @property
    def started(self) -> bool:
        """The task's program was executed."""
        return self.pid is not None

    def set_deadline(self, boottime: float) -> None:
        """Let the task live until then (CLOCK_BOOTTIME in seconds) even if nothing more is heard of the agent."""
        self._send(deadline=boottime)

    def stop(self, grace: float, why: str) -> None:
        """End the task: SIGTERM to its whole tree, SIGKILL after `grace` seconds. Again, it can only shorten the grace.

        Args:
            why: kind of its exit: "stopped", "preempted", "unhealthy".
        """
        self._send(stop=grace, why=why)

    def kill(self) -> None:
        """SIGKILL to the whole tree."""
        self._send(kill=True)

    async def chunks(self) -> AsyncIterator[tuple[int, Path]]:
        """Number and file of each log chunk, in order, until the last one; for one consumer, who removes the files."""
        while (number := await self._chunks.get()) is not None:
            yield number, self._log_path(number)

    async def gone(self) -> None:
        """Return when the runner, and with it every process of the task, has ended."""
        await asyncio.shield(self._listener)

    async def discard(self) -> None:
        """Remove the directory and all that is in it; the task must be gone."""
        await remove(self._spec.directory)

    def _send(self, **message: Any) -> None:
        if not self._stdin.is_closing():
            self._stdin.write(json.dumps(message).encode() + b"\n")

    @property
    def _stdin(self) -> asyncio.StreamWriter:
        assert self._process.stdin is not None
        return self._process.stdin

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        try:
            async for line in self._process.stdout:
                await self._heed(msgspec.json.decode(line))
            self._lost(await self._process.wait())
        finally:
            self._stdin.close()  # cancelled: the runner kills the task and ends
            await self._process.wait()
            self._chunks.put_nowait(None)
            self._begun.set()

    async def _heed(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "started":
                self.pid = event["pid"]
                self._begun.set()
            case "usage":
                self.usage = msgspec.convert(event["usage"], Usage)
            case "chunk":
                self._announce(event["number"])
            case "exit":
                await self._ended(msgspec.convert(event["exit"], Exit), event["complete_before_stop"])

    async def _ended(self, end: Exit, complete_before_stop: bool) -> None:
        result = None
        try:
            if end.kind == "success":
                result = await asyncio.to_thread(_find_result, self._spec)
        except OSError as error:
            end = Exit(kind="exited", code=0, message=f"its result cannot be read: {error}", usage=end.usage)
        self.usage = end.usage or self.usage
        self.exit.set_result(TaskExit(end, result, complete_before_stop))

    def _lost(self, code: int) -> None:
        """If the runner was killed: its task's group goes too, and what it had of the last chunk is kept."""
        if self.exit.done():
            return
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        part = self._log_path(self._announced + 1)
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{part}{PART}", part)
            self._announce(self._announced + 1)
        message = f"the task's runner was ended from outside (exit code {code}), and the task with it"
        end = Exit(kind="lost", message=message, log_chunks=self._announced)
        self.exit.set_result(TaskExit(end, None, False))

    def _announce(self, number: int) -> None:
        self._announced = number
        self._chunks.put_nowait(number)

    def _log_path(self, number: int) -> Path:
        return self._spec.directory / "log" / chunk_name(number)


async def start_runner(
    lock_fd: int | None, spare_command: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """A runner that waits for its order.

    Args:
        spare_command: starts the task's process ahead, with `env`; see `fray_agents.runner.spare`.
    """
    return await asyncio.create_subprocess_exec(
        *_RUNNER,
        "" if lock_fd is None else str(lock_fd),
        *spare_command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C at the agent's terminal is for the agent
        pass_fds=() if lock_fd is None else (lock_fd,),
        limit=_EVENT_LIMIT,
        env=env,
    )


def _order(spec: TaskSpec, deadline: float) -> dict[str, Any]:
    """The runner's order; see `fray_agents.runner.pipe.Order`."""
    call = [*CALL, str(spec.directory), str(spec.result_limit)]
    return {
        "directory": str(spec.directory),
        "command": spec.command or call,
        "is_call": spec.command is None,
        "env": spec.env | ({"FRAY_RESULT": str(spec.directory / "result")} if spec.command else {}),
        "cwd": spec.cwd or "",
        "timeout": spec.timeout,
        "grace": spec.grace,
        "deadline": deadline,
        "result_limit": spec.result_limit,
        "spool_limit": spec.spool_limit,
        "oom_counter": str(spec.oom_counter or ""),
    }


def _furnish(spec: TaskSpec) -> None:
    spec.directory.mkdir(parents=True, exist_ok=True)
    if spec.callable_pickle is not None:
        (spec.directory / "call.pickle").write_bytes(spec.callable_pickle)


def _find_result(spec: TaskSpec) -> ResultFile | None:
    for name in ("result.json", "result.pickle", "result"):
        path = spec.directory / name
        if path.is_file():
            encoding = path.suffix.removeprefix(".") or _encoding_of(path)
            return ResultFile(path, encoding, path.stat().st_size)
    return None


def _encoding_of(path: Path) -> str:
    if path.stat().st_size > _JSON_LIMIT:
        return "bytes"
    try:
        parse_json(path.read_bytes(), DEEPEST_RESULT)
    except Malformed:
        return "bytes"
    return "json"
