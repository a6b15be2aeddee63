"""Starts real tasks, and looks for processes that they leave."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fray_agents.host.container_engine import ContainerEngine, ContainerSpec
from fray_agents.tasks.process_task import ProcessTask
from fray_agents.tasks.task_handle import TaskExit, TaskSpec
from fray_coordinator.jobs.logs import parse_chunk
from fray_runtime.pickling import pickled_by_value
from tests.support.waiting import eventually

FAR = 600.0


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def spec(
    directory: Path, command: list[str] | None = None, call: Callable[[], Any] | None = None, **fields: Any
) -> TaskSpec:
    pickle = None if call is None else pickled_by_value((call, (), {}))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return TaskSpec(directory, command, pickle, env, **{"timeout": None, "grace": 5.0, **fields})


def sh(directory: Path, script: str, **fields: Any) -> TaskSpec:
    return spec(directory, ["sh", "-c", script], **fields)


def contained(
    engine: ContainerEngine,
    directory: Path,
    script: str,
    env: dict[str, str] | None = None,
    image: str = "debian",
    **fields: Any,
) -> TaskSpec:
    """A shell script in a container."""
    what = sh(directory, script, container=ContainerSpec(engine, image), **fields)
    return replace(what, env={"PATH": "/usr/local/bin:/usr/bin:/bin", **(env or {})})


async def run(what: TaskSpec) -> tuple[TaskExit, bytes]:
    """Run the task; return its exit and its log."""
    task = await ProcessTask.start(what, boottime() + FAR, None)
    log = b"".join([path.read_bytes() async for _, path in task.chunks()])
    await task.wait()
    return await task.exit, log


def lines_of(log: bytes, stream: str = "stdout") -> list[bytes]:
    """The lines, and pieces of lines, of one stream in a task's log."""
    return [line.data for line in parse_chunk("log", log, 1, 0) if line.stream == stream]


def end_of(what: TaskSpec) -> TaskExit:
    return asyncio.run(run(what))[0]


async def pids_in(path: Path, count: int) -> list[int]:
    """The process ids that the task has written to `path`, once it has written `count`."""
    await eventually(lambda: len(pids_now(path)) == count)
    return pids_now(path)


def pids_now(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


# A stubborn process tree: each process ignores SIGTERM; one is in a session of its own, and its parent has ended.
STUBBORN = """
trap '' TERM HUP INT
(trap '' TERM; echo $(exec sh -c 'echo $PPID') >> pids; while :; do sleep 0.05; done) &
setsid sh -c 'trap "" TERM; (echo $$ >> pids; while :; do sleep 0.05; done) & wait' &
sh -c '(setsid sh -c "echo \\$\\$ >> pids; while :; do sleep 0.05; done" &)'
echo $$ >> pids
while :; do sleep 0.05; done
"""


async def started(what: TaskSpec, lease: float = FAR) -> ProcessTask:
    return await ProcessTask.start(what, boottime() + lease, None)


async def ended(task: ProcessTask) -> TaskExit:
    """Wait until no process of the task is left; return how the task ended."""
    end = await task.exit
    await task.wait()
    return end
