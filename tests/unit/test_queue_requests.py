"""The requests of many consumers of one queue on a bucket, in virtual time, and how consumers avoid conflicts."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from fray_coordinator.protocol import queue_segments as look
from fray_coordinator.queue.handout import Handout
from tests.support.queue_processes import NAMES, queue_process
from tests.support.virtual import Cluster, StoreConnection

SECONDS = 20


def far(connection: StoreConnection) -> None:
    """A request takes 50 ms."""
    near = connection._pass

    async def passed(verb: str, key: str) -> None:
        await near(verb, key)
        await asyncio.sleep(0.05)

    connection._pass = passed  # type: ignore[method-assign]


async def steady(cluster: Cluster, consuming: int, rate: int, seconds: float) -> tuple[Counter[str], int]:
    """Counts of requests by verb, with those for leases apart, and of items, for consumers of `rate` items a second."""
    producer = await queue_process(cluster)
    consumers = [await queue_process(cluster) for _ in range(consuming)]
    for connection in cluster.connections:
        far(connection)
    done = 0

    async def produce() -> None:
        while True:
            await producer.push(*["x"] * rate, batch=1)
            await cluster.clock.sleep(1.0)

    async def consume(number: int) -> None:
        nonlocal done
        while True:
            for delivery in await consumers[number].take(wait=5.0):
                await consumers[number].consumer.done([delivery.id])
                done += 1

    working = [asyncio.create_task(work) for work in (produce(), *map(consume, range(consuming)))]
    await cluster.clock.sleep(15.0)
    warm, before = [len(connection.asked) for connection in cluster.connections], done
    await cluster.clock.sleep(seconds)
    for task in working:
        task.cancel()
    await asyncio.gather(*working, return_exceptions=True)
    asked: Counter[str] = Counter()
    for connection, begun in list(zip(cluster.connections, warm, strict=True))[1:]:
        asked.update(
            "lease" if verb == "get" and key.endswith("~lease") else verb
            for verb, key in connection.asked[begun:]
            if verb != "unchanged"
        )
    return asked, done - before


@pytest.mark.parametrize(("consuming", "rate"), [(1, 3), (2, 4), pytest.param(20, 20, marks=pytest.mark.slow)])
async def test_an_item_by_itself_costs_its_consumers_fewer_than_five_requests(
    cluster: Cluster, consuming: int, rate: int
) -> None:
    """Once every consumer read the lease of every finished segment, and all of them competed for every item."""

    asked, done = await steady(cluster, consuming, rate, SECONDS)
    assert done > 0.8 * rate * SECONDS
    each = {verb: number / done for verb, number in asked.items()}
    assert each["get"] < 1.1, "its segment"
    assert each["put"] < 2.5, "a claim and an acknowledgement, and claims that somebody else won"
    assert each.get("lease", 0) < 0.5, "of the claims that somebody else won"
    assert sum(each.values()) - each["delete"] < 5, "with the looks of those who find nothing"


@pytest.mark.parametrize("consuming", [1, pytest.param(8, marks=pytest.mark.slow)])
async def test_a_slow_item_costs_little_more_than_its_claim_and_its_acknowledgement(
    cluster: Cluster, consuming: int
) -> None:
    """Once the names of finished segments were written for each item or two: 2.7 writes for an item of ten seconds."""
    producer = await queue_process(cluster)
    items = 64 * consuming
    await producer.push(*map(str, range(items)), batch=1)
    done = 0

    async def consume() -> None:
        nonlocal done
        worker = await queue_process(cluster)
        handout = Handout(worker.queue, worker.consumer, worker.isolation)
        while done < items:
            for delivery in await handout.refill(1, 60.0, 5.0):
                await cluster.clock.sleep(10.0)
                assert handout.done(delivery.id)
                done += 1

    working = [asyncio.create_task(consume()) for _ in range(consuming)]
    await asyncio.gather(*working)
    asked = Counter(verb for connection in cluster.connections[1:] for verb, _ in connection.asked)
    assert asked["put"] / items <= 1.3 * 2, f"{asked}"
    await cluster.clock.sleep(600.0)
    assert not cluster.keys(NAMES.segments), "and everything is collected"


async def test_busy_consumers_find_the_items_of_a_dead_holder(cluster: Cluster) -> None:
    dead, one, two = [await queue_process(cluster) for _ in range(3)]
    await dead.push("left")
    await dead.take(timeout=20.0)
    dead.consumer._maintain = lambda: None  # type: ignore[method-assign]
    found: list[str] = []

    async def consume(busy: object) -> None:
        worker = one if busy == 1 else two
        while "left" not in found:
            for delivery in await worker.take(wait=5.0):
                found.append(delivery.item.body.decode())
                await worker.consumer.done([delivery.id])

    working = [asyncio.create_task(consume(number)) for number in (1, 2)]
    while not all(task.done() for task in working):
        await dead.push(*"xyz", batch=1)
        await cluster.clock.sleep(1.0)
    assert cluster.clock.boottime() < 60.0


async def test_the_bell_rings_once_a_second_at_most_and_without_a_ring_nobody_lists(cluster: Cluster) -> None:
    one, other = await queue_process(cluster), await queue_process(cluster)
    for _ in range(30):
        await one.push("x")
        await cluster.clock.sleep(0.1)
    assert cluster.connections[0].asked.count(("put", NAMES.doorbell)) in (3, 4)
    await other.take(30)
    await other.take()
    asked = len(cluster.connections[1].asked)
    assert await other.take(wait=20.0) == []
    idle = Counter(verb for verb, _ in cluster.connections[1].asked[asked:])
    assert idle["list"] <= 2, idle


def test_consumers_that_know_each_other_share_the_segments_out() -> None:
    everyone = {f"host, pid {number}" for number in range(20)}
    tried: list[str] = []
    for me in everyone:
        free = [f"{number:018}-1" for number in range(400)]
        mine = [free.pop(look.pick_segment(free, me, everyone - {me}, len(free))) for _ in range(5)]
        assert mine == sorted(mine), "the oldest first"
        tried += mine
    assert len(set(tried)) == len(tried), "nobody tries what falls to another"


@pytest.mark.parametrize("wait", [0.0, 5.0])
async def test_a_consumer_that_loses_the_race_for_one_item_gets_the_next(cluster: Cluster, wait: float) -> None:
    """A waiting consumer may leave a few items to others, but not for longer than its own wait."""

    one, other = await queue_process(cluster), await queue_process(cluster)
    connection = cluster.connections[0]
    await other.push(*"ab", batch=1)
    beaten: list[str] = []

    async def beat() -> None:
        beaten.extend(await other.bodies())

    connection.before["put", NAMES.segments] = beat
    assert await one.bodies(wait=wait) == ["b"]
    assert beaten == ["a"]
