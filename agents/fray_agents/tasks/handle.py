"""The interface between an agent and its tasks: the attempt to run, the handle of the running task, and its end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fray_agents.host.container_engine import ContainerSpec
from fray_agents.runner.limits import Limits
from fray_agents.runner.task_log import SEAL_INTERVAL
from fray_agents.runner.untrusted_files import read_file
from fray_agents.tasks.outputs import FoundOutputs
from fray_layouts.errors import Temporary
from fray_layouts.records import AttemptExit, ResourceUsage

RESULT_LIMIT = 256 * 1024**2
"""Bytes of a task's result: it passes through the memory of the agent and of who reads it."""

SPOOL_LIMIT = 1024**3
"""Bytes of log chunks on disk beyond which a task waits in its writes: an hour of the store's absence at 300 kB/s."""

TASK_FILE_LIMIT = 1024**2
"""Bytes of a file through which a task informs its agent: a list of some thousand endpoints fits."""


class StartFailed(Temporary):
    """The task could not be started on this host; it may start on another one."""


@dataclass(frozen=True)
class TaskSpec:
    """One attempt to run.

    Attributes:
        directory: created by the start, removed by `discard`; its own for each attempt.
        command: program and arguments, or
        callable_pickle: cloudpickle of (function, args, kwargs).
        stdin: what a command reads as its standard input; None: there is nothing to read.
        env: the task's complete environment; a command gets `FRAY_RESULT`, where it may leave a result, besides.
        variables: those of `env` that the job itself asked for.
        timeout: seconds it may run.
        grace: seconds between SIGTERM and SIGKILL when the timeout has passed.
        python: the interpreter of a callable.
        python_path: where modules are looked for first, before PYTHONPATH.
        preamble: a file whose lines are the first of its log.
        cwd: where it starts; by default a fresh `work/` in the directory.
        held: descriptors by which it holds what it has of the host; open until nothing of it is left.
        result_limit: bytes that its result may have.
        spool_limit: bytes of log chunks on disk beyond which the task's output waits.
        seal_interval: seconds between two chunks of its log that are not full.
        container: where it runs; None: on the host.
        limits: what it may use at most.
        oom_counter: file whose `oom_kill` line counts out-of-memory kills; by default the one of the own cgroup.
    """

    directory: Path
    command: list[str] | None
    callable_pickle: bytes | None
    env: dict[str, str]
    timeout: float | None
    grace: float
    variables: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | None = None
    cwd: str | None = None
    python: str = sys.executable
    python_path: Sequence[Path] = ()
    preamble: Path | None = None
    held: Sequence[int] = ()
    result_limit: int = RESULT_LIMIT
    spool_limit: int = SPOOL_LIMIT
    seal_interval: float = SEAL_INTERVAL
    container: ContainerSpec | None = None
    oom_counter: Path | None = None
    limits: Limits = Limits()  # noqa: RUF009  nobody changes it

    @property
    def is_plain_call(self) -> bool:
        """Whether any process of the agent's own interpreter can become this task."""
        is_call = self.callable_pickle is not None
        return is_call and self.python == sys.executable and self.container is None and not self.held

    @property
    def start_folder(self) -> Path:
        """Where it starts."""
        return Path(self.cwd) if self.cwd else self.directory / "work"


@dataclass(frozen=True)
class ResultFile:
    """The file of the value that the task returned. encoding: as in `JobResult`; size: bytes."""

    path: Path
    encoding: str
    size: int


@dataclass(frozen=True)
class TaskExit:
    """The end of a task. complete_before_stop: it had succeeded before anything was done to end it."""

    exit: AttemptExit
    result: ResultFile | None
    complete_before_stop: bool


@dataclass(frozen=True)
class TaskFile:
    """A file in a task's directory, where the task may put anything; more than `limit` bytes are not read."""

    path: Path
    limit: int = TASK_FILE_LIMIT

    def read_bytes(self) -> bytes:
        """Its content. Raises OSError if it is no file, or too large."""
        return read_file(str(self.path), self.limit)

    def unlink(self) -> None:
        """Remove it."""
        self.path.unlink()


class TaskHandle(Protocol):
    """A started task, be it a tree of processes or a thread.

    Attributes:
        unkilled: pids of processes that SIGKILL does not end.
        exit: how it ended; set once, when nothing of the task is left.
        usage: the latest sample of what it uses; None if nothing is known.
    """

    unkilled: list[int]
    exit: asyncio.Future[TaskExit]

    @property
    def usage(self) -> ResourceUsage | None: ...

    def set_deadline(self, boottime: float) -> None:
        """Let the task live until then (CLOCK_BOOTTIME in seconds) even if nothing more is heard of the agent."""

    def stop(self, grace: float, why: str) -> None:
        """End the task: SIGTERM to its whole tree, SIGKILL after `grace` seconds. Again, it can only shorten the grace.

        Args:
            why: kind of its exit: "stopped", "preempted", "unhealthy".
        """

    def kill(self) -> None:
        """End the task at once."""

    def chunks(self) -> AsyncIterator[tuple[int, TaskFile]]:
        """Number and file of each log chunk, in order, until the last one; for one consumer, who removes the files."""

    def read_file(self, name: str) -> bytes | None:
        """What the task has left under this name in its directory; None if nothing. Raises OSError if it is no file."""

    def find_outputs(self, patterns: Sequence[str]) -> FoundOutputs:
        """What the task has left of what the patterns name, from where it started; it has ended. It may block.

        Raises OutputsTooLarge: that is more than is kept; OSError: the host cannot read it.
        """

    async def wait(self) -> None:
        """Return when nothing of the task is left."""

    async def discard(self) -> None:
        """Remove its directory and all that is in it; nothing of the task may be left."""


StartTask = Callable[[TaskSpec, float, int | None], Awaitable[TaskHandle]]
"""Starts a task that may run until the boot time given, holding the descriptor of the agent's lock.

Raises StartFailed: this host cannot run it."""


def read_task_file(directory: Path, name: str) -> bytes | None:
    """See `TaskHandle.read_file`."""
    try:
        return TaskFile(directory / name).read_bytes()
    except FileNotFoundError:
        return None
