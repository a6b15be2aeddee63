"""Worker pools with a queue, in the store: the records of pools, and the outcomes of their tasks.

Workers write the outcomes of tasks in batches, and drivers read the batches that were written since their last read.

A batch's name begins with the storage's time of its writing, so a driver lists only names after those it has read. A
slow write may appear late under an earlier name. Therefore the driver lists from `LATE_WRITE_SECONDS` before the newest
name that it knows, and once per repair interval from the beginning. Then it also reads again the objects that held no
outcomes: a foreign object, or a copy that was not complete yet.
"""

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from fray_coordinator.actors import naming
from fray_coordinator.concurrency import map_concurrently, map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import REMOVE_HINT, BadRecord, NameTaken
from fray_coordinator.protocol.retention import is_pool_unused, retention_seconds
from fray_coordinator.queue.open_queue import open_queue
from fray_coordinator.store.interface import ABSENT, NameAbsent
from fray_coordinator.store.records import record_of
from fray_layouts.errors import Malformed
from fray_layouts.escaping import escaped
from fray_layouts.object_keys import JobKeys, NameKeys
from fray_layouts.queue_keys import QueueKeys, TaskKeys
from fray_layouts.queue_records import PoolRecord, QueueRecord, TaskOutcome, decode_outcomes, encode_outcomes

log = logging.getLogger("fray")

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


LATE_WRITE_SECONDS = 5.0
"""Seconds by which a batch may appear later than the time in its name and still be found by the next read."""


async def write_outcomes(core: Core, tasks: TaskKeys, outcomes: Iterable[TaskOutcome]) -> None:
    """Store a batch. Once this returns, its tasks may be acknowledged. Raises StoreUnavailable."""
    await core.store.put(tasks.outcome(core.now(), core.rng.token()), encode_outcomes(outcomes), ABSENT)


@dataclass(slots=True)
class OutcomeReader:
    """Reads the outcomes of a driver's tasks."""

    core: Core
    tasks: TaskKeys
    _seen: set[str] = field(default_factory=set)
    _unreadable: dict[str, str] = field(default_factory=dict)
    _from: float = 0.0
    _full_listing_at: float = 0.0

    async def poll(self) -> list[TaskOutcome]:
        """The outcomes that no earlier call returned, oldest batch first; an unreadable object is logged once.

        Raises StoreUnavailable: poll again later.
        """
        now = self.core.clock.boottime()
        full = now >= self._full_listing_at
        after = None if full else self.tasks.outcomes_after(max(self._from - LATE_WRITE_SECONDS, 0.0))
        rows = await self.core.store.list(self.tasks.outcomes, after)
        keys = [row.key for row in rows if self.tasks.time_of(row.key) is not None]
        fresh = [key for key in keys if key not in self._seen and (full or key not in self._unreadable)]
        unreadable: dict[str, str] = {}
        batches = await map_noting_problems(fresh, self._read, unreadable)
        self._seen.update(key for key in fresh if key not in unreadable)
        self._log_unreadable(unreadable)
        if full:
            self._full_listing_at = now + self.core.settings.repair_interval
        return [outcome for batch in batches for outcome in batch]

    async def _read(self, key: str) -> list[TaskOutcome]:
        found = await self.core.store.get(key)
        if found is None:
            return []
        try:
            outcomes = decode_outcomes(found.data)
        except Malformed as error:
            raise BadRecord(f"{key} holds no outcomes: {error}{REMOVE_HINT}") from None
        self._from = max(self._from, self.tasks.time_of(key) or 0.0)
        return outcomes

    def _log_unreadable(self, unreadable: dict[str, str]) -> None:
        for key, problem in unreadable.items():
            if key not in self._unreadable:
                log.warning("outcomes of tasks may be missing: %s", escaped(problem))
        self._unreadable.update(unreadable)
