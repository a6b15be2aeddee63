"""Starts programs that must not outlive this process, such as uv or the client of a container engine."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from functools import partial
from typing import Any

from fray_agents.runner.process_tree import PR_SET_PDEATHSIG, prctl


async def start_bound_process(*command: str, **options: Any) -> asyncio.subprocess.Process:
    """Start a program without standard input, in a process group of its own. If this process dies, the kernel kills it.

    The `preexec_fn` asks the kernel for that. It runs between fork and exec, so the start is a fork in Python, and it
    must not hold the lock of `fray_runtime.forks`: `start_process` there says why that could be a deadlock.

    Args:
        options: as for `asyncio.create_subprocess_exec`.

    Raises:
        OSError: the program cannot be executed.
    """
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=partial(prctl, PR_SET_PDEATHSIG, signal.SIGKILL),
        **options,
    )


def kill_group(process: asyncio.subprocess.Process) -> None:
    """Send SIGKILL to the process group that a program was started in, and so to its subprocesses, too."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
