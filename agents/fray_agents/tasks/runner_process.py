"""The process of a runner, with a pipe to it and a pipe from it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from fray_agents import runner
from fray_agents.host.forks import without_forks

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
        prestart_command: starts the task's process in advance, with `env`; see `fray_agents.runner.prestarted`.
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
