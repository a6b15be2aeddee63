"""What many consumers of one queue on a bucket ask for, counted in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.support.hands import hand
from tests.support.virtual import Cluster, Way, run

CONSUMERS = 20
ITEMS_A_SECOND = 20
SECONDS = 20


def far(way: Way) -> None:
    """A request takes 50 ms."""
    near = way._pass

    async def passed(verb: str, key: str) -> None:
        await near(verb, key)
        await asyncio.sleep(0.05)

    way._pass = passed  # type: ignore[method-assign]


async def steady(cluster: Cluster, seconds: float) -> tuple[Counter[str], int]:
    """Requests of consumers by verb, those for leases apart, and how many items were done."""
    producer = await hand(cluster)
    consumers = [await hand(cluster) for _ in range(CONSUMERS)]
    for way in cluster.ways:
        far(way)
    done = 0

    async def produce() -> None:
        while True:
            await producer.push(*["x"] * ITEMS_A_SECOND, batch=1)
            await cluster.clock.sleep(1.0)

    async def consume(number: int) -> None:
        nonlocal done
        while True:
            for delivery in await consumers[number].take(wait=5.0):
                await consumers[number].consumer.done([delivery.id])
                done += 1

    working = [asyncio.create_task(work) for work in (produce(), *map(consume, range(CONSUMERS)))]
    await cluster.clock.sleep(15.0)
    warm, before = [len(way.asked) for way in cluster.ways], done
    await cluster.clock.sleep(seconds)
    for task in working:
        task.cancel()
    await asyncio.gather(*working, return_exceptions=True)
    asked: Counter[str] = Counter()
    for way, begun in list(zip(cluster.ways, warm, strict=True))[1:]:
        asked.update(
            "lease" if verb == "get" and key.endswith("~lease") else verb
            for verb, key in way.asked[begun:]
            if verb != "unchanged"
        )
    return asked, done - before


def test_consumers_do_not_read_the_leases_of_what_others_finished() -> None:
    """Every consumer read the lease of every finished segment, again and again."""

    async def main(cluster: Cluster) -> None:
        asked, done = await steady(cluster, SECONDS)
        assert done > 0.8 * ITEMS_A_SECOND * SECONDS
        each = {verb: number / done for verb, number in asked.items()}
        assert each["get"] < 1.1, "its segment"
        assert each["lease"] < 1.2, "of the claims that somebody else won"
        assert each["put"] < 3.2, "a claim and an acknowledgement, and claims that somebody else won"
        assert sum(each.values()) - each["delete"] < 12, "with the looks of those who find nothing"

    run(main)


def test_what_a_holder_left_that_died_is_found_by_consumers_that_are_busy() -> None:
    async def main(cluster: Cluster) -> None:
        dead, one, two = [await hand(cluster) for _ in range(3)]
        await dead.push("left")
        await dead.take(timeout=20.0)
        dead.consumer._tend = lambda: None  # type: ignore[method-assign]
        found: list[str] = []

        async def consume(busy: object) -> None:
            worker = one if busy == 1 else two
            while "left" not in found:
                for delivery in await worker.take(wait=5.0):
                    found.append(delivery.body.decode())
                    await worker.consumer.done([delivery.id])

        working = [asyncio.create_task(consume(number)) for number in (1, 2)]
        while not all(task.done() for task in working):
            await dead.push(*"xyz", batch=1)
            await cluster.clock.sleep(1.0)
        assert cluster.clock.boottime() < 60.0

    run(main)
