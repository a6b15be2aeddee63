"""Uploads a task's logs and result, retrying while the store is away."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable

import msgspec

from fray_agents.tasks.handle import ResultFile, TaskHandle
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreError
from fray_coordinator.persist import persist
from fray_coordinator.store.interface import ABSENT
from fray_layouts.object_keys import WorkKeys
from fray_layouts.records import JobRecord, JobResult
from fray_layouts.spec import MAX_INLINE_BYTES

log = logging.getLogger("fray")


async def upload_logs(core: Core, job: JobRecord, task: TaskHandle, gives_up: Callable[[StoreError], bool]) -> int:
    """Upload each sealed chunk under its number and remove the file; returns the number of the last, 0 if none.

    Args:
        gives_up: asked after each failure whether the rest is lost.
    """
    last = 0
    async for number, path in task.chunks():
        data = path.read_bytes()  # at most a chunk: quicker than a thread
        key = WorkKeys.log(job.id, job.attempt, 0, number)
        try:
            await persist(core, lambda key=key, data=data: core.store.put(key, data, ABSENT), gives_up)  # type: ignore[misc]
        except StoreError as error:
            log.warning("the log of %s after chunk %d is lost: %s", job.id, last, error)
            break
        path.unlink()
        last = number
    return last


async def upload_result(
    core: Core, job: JobRecord, file: ResultFile, gives_up: Callable[[StoreError], bool]
) -> JobResult:
    """Prepare the result as the record holds it; a large one is uploaded as an object of its own first.

    Args:
        gives_up: asked after each failure whether to raise it.

    Raises:
        StoreError: the store did not take it, and it was given up.
    """
    if file.size > MAX_INLINE_BYTES:
        data = await asyncio.to_thread(file.path.read_bytes)
        key = WorkKeys.result(job.id, job.attempt, 0)
        await persist(core, lambda: core.store.put(key, data, ABSENT), gives_up)
        return JobResult(encoding=file.encoding, key=key, size=file.size)
    data = file.path.read_bytes()
    if file.encoding == "json":
        return JobResult(encoding="json", value=msgspec.json.decode(data), size=file.size)
    return JobResult(encoding=file.encoding, data=base64.b64encode(data).decode(), size=file.size)
