"""What the agent needs of a running task, be it a tree of processes or a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from fray_agents.tasks.process_task import TaskExit, TaskSpec
from fray_layouts.records import ResourceUsage


class LogChunkFile(Protocol):
    """A log chunk that waits to be shipped."""

    def read_bytes(self) -> bytes: ...

    def unlink(self) -> None: ...


class TaskHandle(Protocol):
    """A started task; see `fray_agents.tasks.process_task.ProcessTask` for each member."""

    unkilled: list[int]
    exit: asyncio.Future[TaskExit]

    @property
    def usage(self) -> ResourceUsage | None: ...

    def set_deadline(self, boottime: float) -> None: ...

    def stop(self, grace: float, why: str) -> None: ...

    def kill(self) -> None: ...

    def chunks(self) -> AsyncIterator[tuple[int, LogChunkFile]]: ...

    def left(self, name: str) -> bytes | None: ...

    async def gone(self) -> None: ...

    async def discard(self) -> None: ...


StartTask = Callable[[TaskSpec, float, int | None], Awaitable[TaskHandle]]
"""Starts a task that may run until the boot time given, holding the descriptor of the host's lock."""
