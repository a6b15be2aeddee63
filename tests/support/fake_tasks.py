"""Tasks without processes, for agents in virtual time: they run for a while, then succeed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from fray_agents.tasks.output_files import FoundOutputs
from fray_agents.tasks.task_handle import (
    ResultFile,
    StartTask,
    TaskExit,
    TaskFile,
    TaskHandle,
    TaskSpec,
    read_task_file,
)
from fray_layouts.records import AttemptExit, ResourceUsage


class FakeTask:
    """A task that ends after `seconds`. output: its only log chunk; result: its result, as bytes."""

    def __init__(self, spec: TaskSpec, folder: Path, seconds: float, output: bytes, result: bytes | None) -> None:
        self.usage = ResourceUsage()
        self.unkilled: list[int] = []
        loop = asyncio.get_running_loop()
        self.exit: asyncio.Future[TaskExit] = loop.create_future()
        self._chunk = folder / f"{spec.directory.name}.log"
        self._directory = spec.directory
        self._output = output
        self._result = result
        loop.call_later(seconds, self._end, "success")

    def set_deadline(self, boottime: float) -> None:
        self.deadline = boottime

    def stop(self, grace: float, why: str) -> None:
        self._end(why)

    def kill(self) -> None:
        self._end("stopped")

    async def chunks(self) -> AsyncIterator[tuple[int, TaskFile]]:
        await asyncio.shield(self.exit)
        if self._output:
            self._chunk.write_bytes(self._output)
            yield 1, TaskFile(self._chunk)

    async def wait(self) -> None:
        await asyncio.shield(self.exit)

    def read_file(self, name: str) -> bytes | None:
        return read_task_file(self._directory, name)

    def find_outputs(self, patterns: Sequence[str]) -> FoundOutputs:
        raise AssertionError("no test asks these tasks for outputs")

    async def discard(self) -> None:
        """Do nothing: there is nothing to remove."""

    def _end(self, kind: str) -> None:
        if self.exit.done():
            return
        file = None
        if kind == "success" and self._result is not None:
            path = self._chunk.with_suffix(".result")
            path.write_bytes(self._result)
            file = ResultFile(path, "bytes", len(self._result))
        self.exit.set_result(TaskExit(AttemptExit(kind=kind), file, True))


def fake(folder: Path, seconds: dict[str, float], output: bytes = b"", result: bytes | None = None) -> StartTask:
    """A function that starts such tasks. seconds: how long each runs, by its job's name; folder: for their files."""

    async def start(spec: TaskSpec, deadline: float, lock_fd: int | None) -> TaskHandle:
        return FakeTask(spec, folder, seconds[spec.env["FRAY_JOB_NAME"]], output, result)

    return start
