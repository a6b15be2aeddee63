"""The records of worker pools with a queue, by which a new driver continues after one that died."""

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from fray_coordinator.actors import naming
from fray_coordinator.concurrency import map_concurrently, map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import NameTaken
from fray_coordinator.protocol.retention import is_pool_unused, retention_seconds
from fray_coordinator.queue.open_queue import open_queue
from fray_coordinator.store.interface import NameAbsent
from fray_coordinator.store.records import record_of
from fray_layouts.object_keys import JobKeys, NameKeys
from fray_layouts.pool_records import PoolRecord
from fray_layouts.queue_keys import QueueKeys, TaskKeys
from fray_layouts.queue_records import QueueRecord

NAME_KIND = "queue"
"""Kind of a pool's name, which it shares with its queue."""
OUTCOME_SAMPLE = 100
"""Names listed to see whether a pool has outcomes; a hundred, because some may belong to foreign objects."""


async def create(
    core: Core, namespace: str, name: str, queue: QueueRecord, exist_ok: bool = False
) -> tuple[int, PoolRecord]:
    """Create a pool and its queue; returns its incarnation and record.

    Args:
        queue: settings of the queue.
        exist_ok: if a pool has the name, return that pool; a pool whose creator died half-way is completed.

    Raises:
        NameTaken: a pool has the name and `exist_ok` is false, or a queue has it that belongs to no pool.
    """
    incarnation = (await naming.take_name(core, namespace, NAME_KIND, name, "", exist_ok)).incarnation
    key, names = TaskKeys.of(namespace, name, incarnation).pool, QueueKeys.of(namespace, name, incarnation)
    record = record_of(await core.records.read(key, PoolRecord))
    if record is None:
        if await core.store.get(names.settings) is not None:
            raise NameTaken(f"queue {name} in namespace {namespace} belongs to no pool; choose another name")
        record = PoolRecord(created_at=core.now(), used_at=core.now())
        await core.records.update(key, PoolRecord, lambda found: record if found is None else None)
    await open_queue(core, names, queue)
    return incarnation, record


async def find(core: Core, namespace: str, name: str) -> tuple[int, PoolRecord] | None:
    """Incarnation and record of the pool that has the name; None if there is none."""
    holder = await naming.read_held(core, namespace, NAME_KIND, name)
    if holder is None:
        return None
    found = await core.records.read(TaskKeys.of(namespace, name, holder.incarnation).pool, PoolRecord)
    record = record_of(found)
    return (holder.incarnation, record) if record is not None else None


async def exists(core: Core, tasks: TaskKeys) -> bool:
    """Whether the pool still exists, that is, nobody has shut it down."""
    return await core.store.get(tasks.pool) is not None


async def note_jobs(core: Core, tasks: TaskKeys, started: Iterable[str], ended: Collection[str]) -> None:
    """Add worker jobs to the record, and remove those that have ended."""
    added = list(started)

    def decide(found: PoolRecord) -> PoolRecord | None:
        jobs = [job for job in dict.fromkeys([*found.jobs, *added]) if job not in ended]
        return replace(found, jobs=jobs, used_at=core.now()) if jobs != found.jobs else None

    await core.records.change(tasks.pool, PoolRecord, decide)


async def touch(core: Core, tasks: TaskKeys) -> None:
    """Note that a driver uses the pool, so that nobody removes it."""
    await core.records.change(tasks.pool, PoolRecord, lambda found: replace(found, used_at=core.now()))


async def remove(core: Core, namespace: str, name: str, incarnation: int) -> None:
    """Give the name up, and delete the queue and the tasks' objects. The incarnation is never used again.

    The record is deleted first: a later writer finds it missing and removes its own objects.
    """
    tasks, queue = TaskKeys.of(namespace, name, incarnation), QueueKeys.of(namespace, name, incarnation)
    await naming.free_name(core, namespace, NAME_KIND, name, incarnation)
    await core.store.delete(tasks.pool)
    for prefix in (tasks.prefix, queue.prefix):
        await map_concurrently([row.key for row in await core.store.list(prefix)], core.store.delete)


async def remove_unused(core: Core, problems: dict[str, str]) -> None:
    """Remove the pools that no driver and no worker has used for as long as finished jobs are kept."""
    named = [(found, row.key) for row in await core.store.list(NameKeys.area) if (found := NameKeys.parse(row.key))]
    queues = [(found[0], found[2], key) for found, key in named if found[1] == NAME_KIND]
    await map_noting_problems(
        queues, lambda named: remove_if_unused(core, *named[:2]), problems, lambda named: named[2]
    )


async def remove_if_unused(core: Core, namespace: str, name: str) -> None:
    """Remove the pool of this name, if there is one, on condition that its record still shows that nobody used it."""
    holder = await naming.read_held(core, namespace, NAME_KIND, name)
    if holder is None:
        return
    tasks = TaskKeys.of(namespace, name, holder.incarnation)
    pool = await core.records.read(tasks.pool, PoolRecord)
    if pool is None or await _is_used(core, tasks, pool.record):
        return
    if isinstance(await core.store.delete(tasks.pool, pool.version), NameAbsent):
        await remove(core, namespace, name, holder.incarnation)


async def _is_used(core: Core, tasks: TaskKeys, pool: PoolRecord) -> bool:
    if not is_pool_unused(pool.created_at, pool.used_at, core.now(), core.settings):
        return True
    since = tasks.outcomes_after(core.now() - retention_seconds(core.settings))
    written = await core.store.list(tasks.outcomes, since, OUTCOME_SAMPLE)
    if any(tasks.time_of(row.key) is not None for row in written):
        return True
    return any(await map_concurrently(pool.jobs, lambda job: core.store.get(JobKeys.key(job))))
