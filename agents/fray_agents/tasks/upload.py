"""Uploads a task's logs, result and outputs, retrying while the store is away."""

from __future__ import annotations

import asyncio
import base64
import logging
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec

from fray_agents.runner.task_log import CHUNK_BYTES, LineFormatter, LogChunks, chunk_name
from fray_agents.runner.untrusted_files import NotReadable
from fray_agents.tasks.task_handle import ResultFile, TaskFile, TaskHandle
from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreError
from fray_coordinator.jobs.logs import first_part
from fray_coordinator.store.interface import ABSENT, ANY
from fray_layouts.records import JobRecord, JobResult, KeptOutputs, OutputManifest
from fray_layouts.spec import MAX_INLINE_BYTES
from fray_layouts.work_keys import WorkKeys

log = logging.getLogger("fray")

KeepTrying = Callable[[Callable[[], Awaitable[object]]], Awaitable[object]]
"""Repeats a request until it succeeds; raises its last StoreError once it is given up."""

PARTS_AT_ONCE = 4
"""Parts of outputs that are uploaded at a time: 64 MiB in memory, which use the full bandwidth to most buckets."""


async def upload_logs(
    core: Core,
    job: JobRecord,
    replica: int,
    chunks: AsyncIterator[tuple[int, TaskFile]],
    keep_trying: KeepTrying,
) -> int:
    """Upload each sealed chunk under its number and remove the file; returns the last number, 0 if there was none.

    Beyond the job's `log_limit`, chunks of the middle are deleted again, so that followers see the newest output and
    the root keeps the first and the last part.

    Args:
        chunks: as `TaskHandle.chunks` yields them.
        keep_trying: repeats a request; if it raises, the rest of the log is given up.
    """
    last = 0
    window = _LogWindow(job.spec.log_limit)
    async for number, path in chunks:
        data = _chunk_data(path)
        key = WorkKeys.log(job.id, job.attempt, replica, number)
        try:
            await _create(core, key, data, keep_trying)
            core.store.usage.log_bytes += len(data)
            for dropped in window.dropped_by(number, len(data)):
                dropped_key = WorkKeys.log(job.id, job.attempt, replica, dropped)
                await keep_trying(partial(core.store.delete, dropped_key, ANY))
        except StoreError as error:
            log.warning("the log of %s after chunk %d is lost: %s", job.id, last, error)
            break
        with suppress(FileNotFoundError):
            path.unlink()
        last = number
    return last


def _chunk_data(path: TaskFile) -> bytes:
    """A sealed chunk; one that the task has removed or replaced is lost, and a line in its place says so."""
    try:
        return path.read_bytes()  # at most a chunk: quicker than a thread
    except (FileNotFoundError, NotReadable) as error:
        lost = f"fray: a part of the output is lost here, because the task changed its log: {error.strerror or error}\n"
        return b"".join(LineFormatter("stderr").format(lost.encode()))


class _LogWindow:
    """The chunks of a log that are kept: the first half of the limit, and the newest ones."""

    def __init__(self, limit: int) -> None:
        self._first_left = first_part(limit)
        self._last_left = limit - first_part(limit)
        self._last: deque[tuple[int, int]] = deque()

    def dropped_by(self, number: int, size: int) -> list[int]:
        """Numbers of the chunks that are no longer kept now that chunk `number` of `size` bytes is stored."""
        if not self._last and size <= self._first_left:
            self._first_left -= size
            return []
        self._last.append((number, size))
        self._last_left -= size
        dropped: list[int] = []
        while self._last_left < 0:
            oldest, freed = self._last.popleft()
            self._last_left += freed
            dropped.append(oldest)
        return dropped


async def upload_result(
    core: Core, job: JobRecord, replica: int, file: ResultFile, keep_trying: KeepTrying
) -> JobResult:
    """Return the result as the record stores it; a large one is first uploaded as an object of its own.

    Args:
        keep_trying: repeats a request until it succeeds or is given up.

    Raises:
        StoreError: the store did not take it, and it was given up.
    """
    if file.size > MAX_INLINE_BYTES:
        data = await asyncio.to_thread(file.path.read_bytes)
        key = WorkKeys.result(job.id, job.attempt, replica)
        await _create(core, key, data, keep_trying)
        return JobResult(encoding=file.encoding, key=key, size=file.size)
    data = file.path.read_bytes()
    if file.encoding == "json":
        return JobResult(encoding="json", value=msgspec.json.decode(data), size=file.size)
    return JobResult(encoding=file.encoding, data=base64.b64encode(data).decode(), size=file.size)


async def upload_outputs(
    core: Core, job: JobRecord, replica: int, task: TaskHandle, keep_trying: KeepTrying
) -> KeptOutputs:
    """Upload the task's files that match the job's `outputs`, under this attempt; the manifest is written last.

    Args:
        keep_trying: repeats a request until it succeeds or is given up.

    Raises:
        OutputsTooLarge: there are more than are kept.
        StoreError: the store did not take a part, and it was given up.
        OSError: the host cannot read them.
    """
    manifest = WorkKeys.outputs(job.id, job.attempt, replica)
    found = await asyncio.to_thread(task.find_outputs, job.spec.outputs)
    listed = OutputManifest(left_out=found.left_out)
    parts = enumerate(found.parts(listed), 1)

    async def create_part(part: tuple[int, bytes]) -> None:
        await _create(core, WorkKeys.output_part(manifest, part[0]), part[1], keep_trying)

    last = 0
    while some := await asyncio.to_thread(lambda: list(islice(parts, PARTS_AT_ONCE))):
        await map_concurrently(some, create_part)
        last += len(some)
    await _create(core, manifest, msgspec.json.encode(listed), keep_trying)
    return KeptOutputs(key=manifest, parts=last, files=len(listed.files), size=sum(each.size for each in listed.files))


async def file_chunks(text: Path) -> AsyncIterator[tuple[int, TaskFile]]:
    """The log chunks of an attempt whose task never started, from a text file; they are created beside that file."""
    folder = text.with_suffix(".chunks")
    await asyncio.to_thread(folder.mkdir)
    chunks = LogChunks(str(folder), sys.maxsize, lambda number: None)
    await asyncio.to_thread(chunks.append_file, str(text))
    chunks.seal()
    chunks.close()
    for number in range(1, chunks.count + 1):
        yield number, TaskFile(folder / chunk_name(number), 2 * CHUNK_BYTES)


async def _create(core: Core, key: str, data: bytes, keep_trying: KeepTrying) -> None:
    await keep_trying(lambda: core.store.put(key, data, ABSENT))
