"""fsck: objects that belong to no queue or pool and that nobody will remove. Objects about to go are not reported."""

from __future__ import annotations

import asyncio
import random

import pytest

from fray_coordinator import fsck, worker_pools
from fray_coordinator.actors import naming
from fray_coordinator.core import Core
from fray_coordinator.protocol.queue_lease import completed
from fray_coordinator.protocol.retention import retention_seconds
from fray_coordinator.queue.consumer import Consumer
from fray_coordinator.queue.delivery import EncodedItem
from fray_coordinator.queue.doorbell import QueueDoorbell
from fray_coordinator.queue.held_segment import PoisonIsolation
from fray_coordinator.queue.open_queue import open_queue
from fray_coordinator.queue.producer import Producer
from fray_coordinator.reconcile.repair import POOL_SWEEP_INTERVAL
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import NameKeys
from fray_layouts.queue_keys import QueueKeys, SegmentName, TaskKeys
from fray_layouts.queue_records import QueueLease, QueueRecord
from fray_layouts.work_keys import CheckpointKey
from tests.support.damage import LONG, Make, a_job, a_queue, assert_left_alone, everything
from tests.support.slow_reads import slow_core
from tests.support.virtual import Cluster

AGES = 6000.0
"""Seconds after which even a consumer's look for large items is over."""
STEP = 1.0
"""Seconds that a request of those at work takes: longer than two looks of fsck are apart."""
NAME = NameKeys.key("n", "queue", "q")
LARGE = b"x" * 70_000


async def a_lease(core: Core, queue: QueueKeys, lease: QueueLease) -> str:
    """The lease of a segment of three items that no longer exists."""
    key = queue.lease(str(SegmentName(core.now(), 0, "abcdef", 3)))
    await core.records.write(key, QueueLease, lease, None)
    return key


async def a_lease_of_what_is_done(core: Core) -> str:
    return await a_lease(core, await a_queue(core), completed(QueueLease(owner="x"), 0b111))


async def a_lease_of_a_claim_that_came_late(core: Core) -> str:
    return await a_lease(core, await a_queue(core), QueueLease(owner="x"))


async def a_lease_of_what_is_lost(core: Core) -> str:
    return await a_lease(core, await a_queue(core), completed(QueueLease(owner="x"), 0b010))


async def a_lease_among_dead_letters(core: Core) -> str:
    dead = (await a_queue(core)).dead_letters
    await open_queue(core, dead)
    return await a_lease(core, dead, QueueLease(owner="x"))


async def a_large_item_alone(core: Core) -> str:
    key = (await a_queue(core)).large(str(SegmentName(core.now(), 0, "abcdef", 3)), 1)
    await core.store.put(key, LARGE, ANY)
    return key


async def a_queue_that_was_not_removed_to_the_end(core: Core) -> str:
    queue = await a_queue(core)
    await core.store.put(queue.segment(str(SegmentName(core.now(), 0, "abcdef", 3))), b"", ANY)
    await naming.free_name(core, "n", "queue", "q", 1)
    return NAME


async def a_pool_that_was_not_removed_to_the_end(core: Core) -> str:
    """Its name was taken again before the removal ended."""
    await worker_pools.create(core, "n", "q", QueueRecord())
    await core.store.put(TaskKeys.of("n", "q", 1).outcome(core.now(), "abcdef"), b"", ANY)
    await naming.free_name(core, "n", "queue", "q", 1)
    await worker_pools.create(core, "n", "q", QueueRecord())
    return NAME


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (a_lease_of_what_is_done, "the lease of a deleted segment"),
        (a_lease_of_a_claim_that_came_late, "the lease of a deleted segment"),
        (a_lease_of_what_is_lost, "2 of its 3 items were not done"),
        (a_lease_among_dead_letters, "the lease of a deleted segment"),
        (a_large_item_alone, "whose segment was never created"),
        (a_queue_that_was_not_removed_to_the_end, "removed as incarnation 1, 2 objects are left"),
        (a_pool_that_was_not_removed_to_the_end, "removed as incarnation 1, 3 objects are left"),
    ],
)
async def test_remains_of_queues_are_found_and_removed(core: Core, make: Make, words: str) -> None:
    await a_job(core)
    key = await make(core)
    assert await fsck.check(core) == [], "it may be on its way"
    await core.clock.sleep(AGES)
    [problem] = await fsck.check(core)
    assert problem.key == key
    assert words in problem.what
    assert "--repair" in problem.remedy
    await fsck.repair(core)
    assert await fsck.check(core) == []
    assert not [found for found in await everything(core) if "abcdef" in found]


async def a_name_without_a_queue(core: Core) -> str:
    await naming.take_name(core, "n", "queue", "q", "")
    return NAME


async def a_pool_without_a_queue(core: Core) -> str:
    await worker_pools.create(core, "n", "q", QueueRecord())
    await core.store.delete(QueueKeys.of("n", "q", 1).settings)
    return NAME


async def a_queue_without_a_name(core: Core) -> str:
    await a_queue(core)
    await core.store.delete(NAME)
    return NAME


async def a_queue_of_an_incarnation_to_come(core: Core) -> str:
    await a_queue(core)
    await core.store.put(QueueKeys.of("n", "q", 7).settings, b"{}", ANY)
    return NAME


async def a_pool_that_nobody_ends(core: Core) -> str:
    await worker_pools.create(core, "n", "q", QueueRecord())
    await worker_pools.note_jobs(core, TaskKeys.of("n", "q", 1), ["worker-gone"], [])
    await core.clock.sleep(retention_seconds(core.settings) + POOL_SWEEP_INTERVAL)
    return TaskKeys.of("n", "q", 1).pool


@pytest.mark.parametrize(
    ("make", "words", "remedy"),
    [
        (a_name_without_a_queue, "there is no queues/n/q~1/queue.json", "`fray queue rm q --namespace n`"),
        (a_pool_without_a_queue, "there is no queues/n/q~1/queue.json", "create it again under this name"),
        (a_queue_without_a_name, "the name's record is gone", "write the record back with incarnation 1"),
        (a_queue_of_an_incarnation_to_come, "the name's record says 1", "write the record back with incarnation 7"),
    ],
)
async def test_objects_that_only_a_person_can_judge_are_left_alone(
    core: Core, make: Make, words: str, remedy: str
) -> None:
    await assert_left_alone(core, await make(core), words, remedy)


@pytest.mark.parametrize("make", [a_name_without_a_queue, a_pool_without_a_queue])
async def test_a_queue_may_be_about_to_be_made(core: Core, make: Make) -> None:
    await make(core)
    assert await fsck.check(core) == []


async def test_a_lease_that_was_written_lately_is_somebodys(core: Core) -> None:
    key = await a_lease_of_what_is_done(core)
    await core.clock.sleep(AGES)
    await core.records.update(key, QueueLease, lambda lease: lease and completed(lease, 0))
    assert await fsck.check(core) == []


async def test_a_segment_may_wait_for_its_quarantine_to_be_cleared_away(core: Core) -> None:
    await a_queue(core)
    await core.store.put(QueueKeys.of("n", "q", 1).settings, b'{"quarantine": 900}', ANY)
    await a_lease_of_what_is_done(core)
    await core.clock.sleep(900.0)
    assert await fsck.check(core) == []


async def test_a_removal_that_goes_on_is_no_trouble(cluster: Cluster) -> None:
    """The removal may take any time, as long as it makes progress between the two looks."""

    core = await cluster.core()
    queue = await a_queue(core)
    segments = [queue.segment(str(SegmentName(core.now(), order, "abcdef", 1))) for order in range(20)]
    for key in segments:
        await core.store.put(key, b"", ANY)
    await naming.free_name(core, "n", "queue", "q", 1)
    await core.clock.sleep(LONG)
    looker, removed = await slow_core(cluster), asyncio.create_task(remove_slowly(core, segments))
    assert await fsck.check(looker) == []
    assert not removed.done(), "it went on meanwhile"
    await removed
    assert len(await fsck.check(looker)) == 1


async def remove_slowly(core: Core, keys: list[str]) -> None:
    for key in keys:
        await core.clock.sleep(0.1)
        await core.store.delete(key)


async def test_a_pool_is_not_idle_while_a_worker_is_known(core: Core) -> None:
    await worker_pools.create(core, "n", "q", QueueRecord())
    worker = await a_job(core)
    await worker_pools.note_jobs(core, TaskKeys.of("n", "q", 1), [worker.id], [])
    await core.clock.sleep(retention_seconds(core.settings) + LONG)
    assert await fsck.check(core) == []


async def test_a_writer_that_dies_during_a_cleanup_leaves_a_gap_in_checkpoints(core: Core) -> None:
    job = await a_job(core)
    for number in (1, 3, 4):
        await core.store.put(CheckpointKey(job.id, "actor", number).key(), b"{}\n", ANY)
    await core.clock.sleep(LONG)
    assert await fsck.check(core) == []


async def test_items_are_not_read(cluster: Cluster) -> None:
    core = await cluster.core()
    queue = await open_queue(core, await a_queue(core))
    bell = QueueDoorbell(queue)
    await Producer(queue, bell).push([EncodedItem(LARGE), *([EncodedItem(b"1")] * 500)], batch=5)
    await bell.close()
    await a_lease_of_what_is_done(core)
    await core.clock.sleep(AGES)
    asked = cluster.connections[0].asked
    asked.clear()
    assert len(await fsck.check(core)) == 1
    assert not [key for verb, key in asked if verb == "get" and ("/large/" in key or "/segments/" in key)][2:]
    assert len(asked) < 100


async def test_nothing_is_wrong_with_queues_at_work(cluster: Cluster) -> None:
    """Consumers and producers die at any moment, so fsck meets objects that other ones remove later."""
    draw = random.Random(1)

    async def produce(core: Core) -> None:
        while True:
            queue = await open_queue(core, await a_queue(core))
            producer = Producer(queue, QueueDoorbell(queue))
            await producer.push(
                [EncodedItem(draw.choice([LARGE, b"1"])) for _ in range(draw.randrange(1, 20))], batch=3
            )
            await core.clock.sleep(draw.expovariate(1 / 5))

    async def consume(core: Core) -> None:
        while True:
            queue = await open_queue(core, await a_queue(core))
            consumer = Consumer(queue, QueueDoorbell(queue))
            for _ in range(draw.randrange(5, 40)):
                taken = await consumer.take(4, 10.0, PoisonIsolation(), wait=5.0)
                await core.clock.sleep(draw.expovariate(2))
                await consumer.done([delivery.id for delivery in taken])
            await consumer.close()

    checker = await slow_core(cluster)
    at_work = [asyncio.create_task(produce(await slow_core(cluster, STEP))) for _ in range(2)]
    at_work += [asyncio.create_task(consume(await slow_core(cluster, STEP))) for _ in range(3)]
    while checker.clock.boottime() < 400:
        await checker.clock.sleep(draw.uniform(1, 20))
        assert await fsck.check(checker) == []
        dying = draw.randrange(len(at_work))
        at_work[dying].cancel()
        successor = (produce if dying < 2 else consume)(await slow_core(cluster, STEP))
        at_work[dying] = asyncio.create_task(successor)
    for task in at_work:
        task.cancel()
    await asyncio.gather(*at_work, return_exceptions=True)


async def test_a_pool_that_nobody_has_used_is_found_and_removed(core: Core) -> None:
    key = await a_pool_that_nobody_ends(core)
    assert await fsck.check(core) == []
    await core.clock.sleep(LONG)
    [problem] = await fsck.check(core)
    assert problem.key == key
    assert "its 2 objects are left" in problem.what
    await fsck.repair(core)
    assert await fsck.check(core) == []
    assert not [key for key in await everything(core) if key.startswith(("tasks/", "queues/"))]
