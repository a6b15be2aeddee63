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
from fray_agents.tasks.output_files import FoundOutputs
from fray_layouts.errors import Temporary
from fray_layouts.records import AttemptExit, ResourceUsage

RESULT_LIMIT = 256 * 1024**2
"""Most bytes of a task's result: it passes through the memory of the agent and of each reader."""

SPOOL_LIMIT = 1024**3
"""Bytes of log chunks on disk beyond which a task's writes block: an hour without the store at 300 kB/s."""

TASK_FILE_LIMIT = 1024**2
"""Most bytes of a file through which a task informs its agent: enough for a list of several thousand endpoints."""


class StartFailed(Temporary):
    """The task could not be started on this host; it may start on another one."""


@dataclass(frozen=True)
class TaskSpec:
    """One attempt to run.

    Attributes:
        directory: the attempt's own; `start` creates it and `discard` removes it.
        command: program and arguments; None if there is a callable.
        callable_pickle: cloudpickle of (function, args, kwargs); None if there is a command.
        stdin: the standard input of a command; None: it is empty.
        env: the task's complete environment; a command also gets `FRAY_RESULT`, the path where it may leave a result.
        variables: those of `env` that the job itself asked for.
        secrets: values of variables that its log must not show.
        timeout: seconds that it may run.
        grace: seconds between SIGTERM and SIGKILL when the timeout has passed.
        python: the interpreter of a callable.
        python_path: folders that are searched for modules first, before PYTHONPATH.
        preamble: a file whose lines come first in its log.
        cwd: its working directory; by default a new `work/` in the directory.
        held: descriptors of host resources that it holds; they stay open until no process of it is left.
        result_limit: most bytes of its result.
        spool_limit: bytes of log chunks on disk beyond which the task's writes block.
        seal_interval: seconds after which a chunk of its log is closed even if it is not full.
        container: the container in which it runs; None: it runs on the host.
        limits: what it may use at most.
        oom_counter: file whose `oom_kill` line counts out-of-memory kills; by default that of its own cgroup.
    """

    directory: Path
    command: list[str] | None
    callable_pickle: bytes | None
    env: dict[str, str]
    timeout: float | None
    grace: float
    variables: Mapping[str, str] = field(default_factory=dict)
    secrets: Sequence[str] = ()
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
    limits: Limits = Limits()  # noqa: RUF009  it is frozen

    @property
    def is_plain_call(self) -> bool:
        """Whether a prestarted process of the agent's own interpreter can become this task."""
        is_call = self.callable_pickle is not None
        return is_call and self.python == sys.executable and self.container is None and not self.held

    @property
    def start_folder(self) -> Path:
        """The folder in which it starts."""
        return Path(self.cwd) if self.cwd else self.directory / "work"


@dataclass(frozen=True)
class ResultFile:
    """The file of the value that the task returned. encoding: as in `JobResult`; size: bytes."""

    path: Path
    encoding: str
    size: int


@dataclass(frozen=True)
class TaskExit:
    """The end of a task. complete_before_stop: it had succeeded before anything tried to end it."""

    exit: AttemptExit
    result: ResultFile | None
    complete_before_stop: bool


@dataclass(frozen=True)
class TaskFile:
    """A file in a task's directory, which may hold anything; files of more than `limit` bytes are not read."""

    path: Path
    limit: int = TASK_FILE_LIMIT

    def read_bytes(self) -> bytes:
        """Its content. Raises OSError if it is not a regular file, or too large."""
        return read_file(str(self.path), self.limit)

    def unlink(self) -> None:
        """Remove it."""
        self.path.unlink()


class TaskHandle(Protocol):
    """A started task: a tree of processes, or a thread.

    Attributes:
        unkilled: pids of processes that SIGKILL does not end.
        exit: its end; set once, when nothing of the task is left.
        usage: the latest sample of the resources that it uses; None if there is none.
    """

    unkilled: list[int]
    exit: asyncio.Future[TaskExit]

    @property
    def usage(self) -> ResourceUsage | None: ...

    def set_deadline(self, boottime: float) -> None:
        """Let the task live until then (CLOCK_BOOTTIME in seconds) unless a later call moves the deadline on."""

    def stop(self, grace: float, why: str) -> None:
        """End the task: SIGTERM to its whole tree, SIGKILL after `grace` seconds. A second call can only shorten that.

        Args:
            why: the kind of its exit: "stopped", "preempted" or "unhealthy".
        """

    def kill(self) -> None:
        """End the task at once."""

    def chunks(self) -> AsyncIterator[tuple[int, TaskFile]]:
        """Number and file of each log chunk, in order, until the last; for one consumer, which removes the files."""

    def read_file(self, name: str) -> bytes | None:
        """Content of the task's file of this name in its directory; None if there is none. Raises OSError otherwise."""

    def find_outputs(self, patterns: Sequence[str]) -> FoundOutputs:
        """The files that match the patterns, relative to where the task started. The task has ended; this may block.

        Raises OutputsTooLarge: there are more than are kept; OSError: the host cannot read them.
        """

    async def wait(self) -> None:
        """Return when nothing of the task is left."""

    async def discard(self) -> None:
        """Remove its directory with its content; no process of the task may be left."""


StartTask = Callable[[TaskSpec, float, int | None], Awaitable[TaskHandle]]
"""Starts a task that may run until the given boot time, and that holds the given descriptor of the agent's lock.

Raises StartFailed: this host cannot run it."""


def read_task_file(directory: Path, name: str) -> bytes | None:
    """See `TaskHandle.read_file`."""
    try:
        return TaskFile(directory / name).read_bytes()
    except FileNotFoundError:
        return None
