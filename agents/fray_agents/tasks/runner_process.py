"""The process of a runner, with a pipe to it and one from it."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from fray_agents import runner

T = TypeVar("T")

EVENT_LIMIT = 1024**2
"""Bytes of one event of the runner; the longest is an exit, whose texts `exit_report` bounds."""

_OUTPUT_GRACE = 1.0
"""Seconds in which what a runner said before its end is read: it lies in the pipe already."""

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
        prestart_command: starts the task's process ahead, with `env`; see `fray_agents.runner.prestarted`.
        kept_fds: further descriptors that stay open until it ends, by which others see that it is there.
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
    transport, protocol = await _WithoutForks(starting)
    return asyncio.subprocess.Process(transport, protocol, loop)


_no_forks = threading.RLock()  # uvloop forks in Python, in this very thread
"""Held by a thread that starts a process, and by one that forks: a program with an agent of its own has both.

To see whether its program was executed, whoever starts a process reads from a pipe until all who have its other end are
gone. A child that another thread forks meanwhile has that too, and the agent would stand still for as long as it lives.
"""
os.register_at_fork(before=_no_forks.acquire, after_in_parent=_no_forks.release, after_in_child=_no_forks.release)


class _WithoutForks(Generic[T]):
    """Awaits a coroutine; until that waits for the first time, and so has started its process, no thread forks."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._coroutine.__await__()
        try:
            with _no_forks:
                waits_for = next(steps)
            while True:
                try:
                    yield waits_for
                except BaseException as error:
                    waits_for = steps.throw(error)
                else:
                    waits_for = next(steps)
        except StopIteration as end:
            value: T = end.value
            return value


class _RunnerProtocol(asyncio.subprocess.SubprocessStreamProtocol):
    """Ends the runner's output soon after the runner, also where somebody else holds the pipe open.

    A library may have forked between the making of the pipe and the runner's start. Its child has the runner's end too,
    and would keep the task, perhaps the one that it waits for, from ever ending.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._output = cast(asyncio.SubprocessTransport, transport).get_pipe_transport(1)  # uvloop's has no class
        super().connection_made(transport)

    def process_exited(self) -> None:
        assert self._output is not None
        asyncio.get_running_loop().call_later(_OUTPUT_GRACE, self._output.close)
        super().process_exited()
