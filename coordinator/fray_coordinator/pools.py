"""Worker pools with a queue: their record, for the driver that comes after one that died."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from fray_coordinator import naming
from fray_coordinator.core import Core, each
from fray_coordinator.records import record_of
from fray_layouts.queue_names import Queues, Tasks
from fray_layouts.tasks import PoolRecord

KIND = "queue"
"""A pool has its name together with its queue."""


async def create(core: Core, namespace: str, name: str) -> int:
    """Take the name for a new pool; its incarnation. Raises NameTaken."""
    incarnation = (await naming.take(core, namespace, KIND, name, "")).incarnation
    fresh, key = PoolRecord(created_at=core.now()), Tasks.of(namespace, name, incarnation).pool
    await core.records.update(key, PoolRecord, lambda found: fresh if found is None else None)
    return incarnation


async def find(core: Core, namespace: str, name: str) -> tuple[int, PoolRecord] | None:
    """Incarnation and record of the pool that has the name; None if there is none."""
    holder = await naming.living(core, namespace, KIND, name)
    if holder is None:
        return None
    found = await core.records.read(Tasks.of(namespace, name, holder.incarnation).pool, PoolRecord)
    record = record_of(found)
    return (holder.incarnation, record) if record is not None else None


async def note_jobs(core: Core, tasks: Tasks, started: Iterable[str], ended: Collection[str]) -> None:
    """Remember worker jobs, and forget those that have ended."""
    added = list(started)

    def decide(found: PoolRecord | None) -> PoolRecord | None:
        record = found or PoolRecord(created_at=core.now())
        jobs = [job for job in dict.fromkeys([*record.jobs, *added]) if job not in ended]
        return replace(record, jobs=jobs) if jobs != record.jobs else None

    await core.records.update(tasks.pool, PoolRecord, decide)


async def remove(core: Core, namespace: str, name: str, incarnation: int) -> None:
    """Give the name up, and delete the queue and what its tasks have left: the incarnation is never used again."""
    await naming.free(core, namespace, KIND, name, incarnation)
    for prefix in (Tasks.of(namespace, name, incarnation).prefix, Queues.of(namespace, name, incarnation).prefix):
        await each([row.key for row in await core.store.list(prefix)], core.store.delete)
