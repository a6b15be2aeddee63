"""The handout: items taken ahead, acknowledgements written together, and the fate of both when a process ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from fray_coordinator.errors import StoreRefused
from fray_coordinator.queue.delivery import Delivery
from fray_coordinator.queue.handout import ACKNOWLEDGE_WITHIN, RETURN_AFTER, Handout
from fray_coordinator.queue.held_segment import PoisonIsolation
from tests.support.queue_processes import NAMES, QueueProcess, queue_process
from tests.support.virtual import Cluster, StoreConnection

TIMEOUT = 60.0


async def worker(
    cluster: Cluster, durable: bool = False, local: bool = False
) -> tuple[QueueProcess, Handout, StoreConnection]:
    one = await queue_process(cluster, local)
    return one, Handout(one.queue, one.consumer, one.isolation, durable), cluster.connections[-1]


async def work(cluster: Cluster, one: QueueProcess, handout: Handout, items: int, seconds: float = 0.0) -> list[str]:
    """Take each item, work for this time, and acknowledge it, one by one. Returns the items."""
    done: list[str] = []
    while len(done) < items:
        ready = handout.pop(TIMEOUT)
        for delivery in [ready] if ready else await handout.refill(1, TIMEOUT, 5.0):
            await cluster.clock.sleep(seconds)
            if not handout.done(delivery.id):
                await one.consumer.done([delivery.id])
            done.append(delivery.item.body.decode())
    return done


def paid(connection: StoreConnection, since: int) -> Counter[str]:
    return Counter(verb for verb, _ in connection.asked[since:] if verb not in ("delete", "unchanged"))


@pytest.mark.parametrize("seconds", [0.0, 0.02])
async def test_items_pushed_one_by_one_cost_two_requests_each_and_some_for_all(
    cluster: Cluster, seconds: float
) -> None:
    one, handout, connection = await worker(cluster)
    await one.push(*map(str, range(400)), batch=1)
    before = len(connection.asked)
    assert await work(cluster, one, handout, 400, seconds) == [str(number) for number in range(400)]
    await handout.settle()
    asked = paid(connection, before)
    assert asked["get"] <= 403, "each segment; and the bell"
    assert asked["put"] + asked["list"] <= 400 + 5 + 400 * seconds / ACKNOWLEDGE_WITHIN, "claims; receipts, listings"


async def test_items_popped_many_at_a_time_and_done_one_by_one_are_written_together(cluster: Cluster) -> None:
    """Once each acknowledgement was a write of its own, fifty times slower than items that were popped one by one."""
    one, handout, connection = await worker(cluster)
    await one.push(*map(str, range(1000)), batch=250)
    before, done = len(connection.asked), list[str]()
    while taken := await handout.refill(250, TIMEOUT, 0.0):
        assert len(taken) == 250
        for delivery in taken:
            await cluster.clock.sleep(0.001)
            assert handout.done(delivery.id)
            done.append(delivery.item.body.decode())
    await handout.settle()
    assert done == [str(number) for number in range(1000)]
    assert paid(connection, before)["put"] <= 4 + 5 + 2, "claims; a write of a lease each second, and at each change"


async def test_local_files_are_listed_once_for_all_items_and_once_at_the_end(cluster: Cluster) -> None:
    """A listing also reads segments that were finished seconds ago, so none is made only to take items ahead."""
    one, handout, connection = await worker(cluster, local=True)
    await one.push(*map(str, range(200)), batch=1)
    before = len(connection.asked)
    await work(cluster, one, handout, 200)
    assert await handout.refill(1, TIMEOUT, 0.0) == []
    assert one.consumer.held == {}, "what was noted is written"
    assert connection.asked[before:].count(("list", NAMES.segments)) == 2


async def shared(
    cluster: Cluster, consuming: int, items: int, seconds: float, settled: int = 0
) -> tuple[Counter[str], int]:
    """What so many consumers ask for that work through a backlog, by verb, reads of leases apart; and how many items.

    settled: from when so many items are done; before that they learn of each other.
    """
    workers = [await worker(cluster) for _ in range(consuming)]
    for _, handout, _ in workers:
        assert await handout.refill(1, TIMEOUT, 0.0) == []  # a new consumer reads what others left
    await workers[0][0].push(*map(str, range(items)), batch=1)
    done = list[str]()

    async def until_all_are_done(one: QueueProcess, handout: Handout) -> None:
        while len(done) < items:
            done.extend(await work(cluster, one, handout, 1, seconds))

    working = [asyncio.create_task(until_all_are_done(one, handout)) for one, handout, _ in workers]
    while len(done) < settled:
        await cluster.clock.sleep(0.1)
    before, first = [len(connection.asked) for _, _, connection in workers], len(done)
    while len(done) < (items if not settled else 3 * items // 4):
        await cluster.clock.sleep(0.1)
    asked = Counter[str]()
    for (_, _, connection), begun in zip(workers, before, strict=True):
        asked.update(f"{verb} lease" if key.endswith("~lease") else verb for verb, key in connection.asked[begun:])
    for task in working:
        task.cancel()
    assert max(Counter(done).values()) == 1
    del asked["delete"], asked["delete lease"], asked["unchanged"]
    return asked, len(done) - first


@pytest.mark.parametrize(("consuming", "most"), [(1, 2.03), (2, 2.05), pytest.param(8, 2.2, marks=pytest.mark.slow)])
async def test_many_consumers_that_run_behind_ask_for_little_more(
    cluster: Cluster, consuming: int, most: float
) -> None:
    """The additional requests are claims that others won, before they know each other and for the last items."""
    asked, items = await shared(cluster, consuming, 400 * consuming, 0.02)
    assert asked.total() / items < most, f"{asked}"


@pytest.mark.parametrize("consuming", [2, pytest.param(8, marks=pytest.mark.slow)])
async def test_consumers_that_know_each_other_lose_no_claims(cluster: Cluster, consuming: int) -> None:
    """Once a consumer that had finished its own part of a listing tried the others' parts."""
    asked, _ = await shared(cluster, consuming, 400 * consuming, 0.02, settled=100 * consuming)
    assert asked["get lease"] <= consuming // 4, f"{asked}"
    assert asked["put lease"] <= asked["get"] + asked["get lease"] + consuming, "each claim reads a segment"


@pytest.mark.parametrize(("consuming", "most"), [(2, 2.2), pytest.param(8, 2.35, marks=pytest.mark.slow)])
async def test_consumers_that_come_later_read_few_leases_of_the_others(
    cluster: Cluster, consuming: int, most: float
) -> None:
    """Once each of them that found nothing more read all leases of the others, a read for each item in all."""
    producer, _, _ = await worker(cluster)
    await producer.push(*map(str, range(400 * consuming)), batch=1)
    done = list[str]()

    async def come_and_work(later: float) -> None:
        await cluster.clock.sleep(later)
        one, handout, _ = await worker(cluster)
        while len(done) < 400 * consuming:
            done.extend(await work(cluster, one, handout, 1, 0.02))

    working = [asyncio.create_task(come_and_work(float(number))) for number in range(consuming)]
    while len(done) < 400 * consuming:
        await cluster.clock.sleep(0.1)
    asked = Counter[str]()
    for connection in cluster.connections[1:]:
        asked += paid(connection, 0)
    for task in working:
        task.cancel()
    assert asked.total() / len(done) < most, f"{asked}"


async def test_a_new_consumer_reads_at_once_the_items_of_a_dead_one(cluster: Cluster) -> None:
    """There are more leases than it reads at first, and also free items; it does not wait."""
    dead, _, connection = await worker(cluster)
    await dead.push(*map(str, range(100)), batch=1)
    assert len(await dead.take(80, TIMEOUT)) == 80
    connection.cut = True
    await cluster.clock.sleep(2 * TIMEOUT)
    two = await queue_process(cluster)
    found = list[str]()
    while taken := await two.consumer.take(1, TIMEOUT, PoisonIsolation()):  # each is a suspect: alone in its process
        found += [delivery.item.body.decode() for delivery in taken]
    assert sorted(found, key=int) == [str(number) for number in range(100)]


async def test_items_that_others_finished_long_ago_are_not_claimed_from_an_old_listing(cluster: Cluster) -> None:
    """Once the lease had gone with the item, so the claim was won, and nothing was there."""
    asked, items = await shared(cluster, 2, 700, 0.2)
    assert asked["get"] - items <= 2, f"the doorbell, once each; {asked}"


async def test_a_noted_acknowledgement_is_written_within_the_window(cluster: Cluster) -> None:
    one, handout, _ = await worker(cluster)
    await one.push(*"abc", batch=1)
    await work(cluster, one, handout, 3)
    await cluster.clock.sleep(ACKNOWLEDGE_WITHIN + 0.1)
    assert one.consumer.held == {}


async def test_items_whose_acknowledgements_were_only_noted_are_delivered_again(cluster: Cluster) -> None:
    one, handout, connection = await worker(cluster)
    other = await queue_process(cluster)
    await one.push(*"ab", batch=1)
    await work(cluster, one, handout, 2)
    connection.cut = True
    found: list[str] = []
    while len(found) < 2:
        for delivery in await other.take(wait=100.0):
            found.append(delivery.item.body.decode())
            await other.consumer.done([delivery.id])
    assert found == ["a", "b"]


async def test_a_pop_that_finds_nothing_writes_the_noted_acknowledgements(cluster: Cluster) -> None:
    one, handout, connection = await worker(cluster)
    await one.push(*"ab", batch=1)
    await work(cluster, one, handout, 2)
    assert await handout.refill(1, TIMEOUT, 0.0) == []
    assert one.consumer.held == {}
    assert [key for verb, key in connection.asked if verb == "put" and key.startswith(NAMES.receipts)]


async def test_a_pop_waits_though_noted_acknowledgements_are_written_while_it_looks(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, handout, _ = await worker(cluster)
    other = await queue_process(cluster)
    await one.push("a", batch=1)
    await work(cluster, one, handout, 1)
    look = one.consumer.take

    async def look_while_the_window_ends(*asked: Any, **named: Any) -> list[Delivery]:
        found = await look(*asked, **named)
        await handout.flush()
        return found

    monkeypatch.setattr(one.consumer, "take", look_while_the_window_ends)
    popping = asyncio.create_task(handout.refill(1, TIMEOUT, 100.0))
    await cluster.clock.sleep(20.0)
    await other.push("b", batch=1)
    assert [delivery.item.body for delivery in await popping] == [b"b"]


async def test_a_durable_consumer_has_each_acknowledgement_stored(cluster: Cluster) -> None:
    one, handout, _ = await worker(cluster, durable=True)
    await one.push(*"abc", batch=1)
    for body in "abc":
        [delivery] = await handout.refill(1, TIMEOUT, 0.0)
        assert delivery.item.body.decode() == body
        assert not handout.done(delivery.id)
        assert len(one.consumer.held) == 1, "nothing is taken ahead"
        await one.consumer.done([delivery.id])


async def test_shortly_before_a_lease_ends_nothing_is_noted(cluster: Cluster) -> None:
    one, handout, _ = await worker(cluster)
    await one.push("a")
    [delivery] = await handout.refill(1, TIMEOUT, 0.0)
    await cluster.clock.sleep(TIMEOUT - 4.0)
    assert not handout.done(delivery.id)
    await one.consumer.done([delivery.id])


async def test_items_that_nobody_asks_for_go_back_to_the_others(cluster: Cluster) -> None:
    one, handout, _ = await worker(cluster)
    other = await queue_process(cluster)
    await one.push(*map(str, range(10)), batch=1)
    await work(cluster, one, handout, 4)
    assert len(one.consumer.held) > 4
    await cluster.clock.sleep(2 * RETURN_AFTER + 0.1)
    assert sorted(await other.bodies(10, wait=10.0)) == ["4", "5", "6", "7", "8", "9"]


async def test_a_slow_consumer_takes_nothing_ahead(cluster: Cluster) -> None:
    one, handout, _ = await worker(cluster)
    await one.push(*map(str, range(10)), batch=1)
    for _ in range(4):
        [delivery] = await handout.refill(1, TIMEOUT, 0.0)
        assert handout.pop(TIMEOUT) is None
        await cluster.clock.sleep(1.0)
        assert handout.done(delivery.id)


async def test_acknowledgements_that_the_storage_refuses_are_written_later(cluster: Cluster) -> None:
    one, handout, connection = await worker(cluster)
    await one.push(*"abc", batch=1)
    await work(cluster, one, handout, 3)
    connection.refused.append(("put", NAMES.prefix))
    await cluster.clock.sleep(10.0)
    assert len(one.consumer.held) == 3
    connection.refused.clear()
    await cluster.clock.sleep(20.0)
    assert one.consumer.held == {}


async def test_consumers_whose_acknowledgements_are_refused_repeat_them_at_different_times(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: dict[Handout, list[float]] = {}

    async def refused(handout: Handout) -> None:
        tries.setdefault(handout, []).append(cluster.clock.boottime())
        raise StoreRefused("HTTP 403")

    monkeypatch.setattr(Handout, "flush", refused)
    for _ in range(2):
        one, handout, _ = await worker(cluster)
        await one.push("a")
        await work(cluster, one, handout, 1)
    await cluster.clock.sleep(60.0)
    pauses = [[b - a for a, b in pairwise(times)] for times in tries.values()]
    assert min(map(len, pauses)) > 5
    assert all(abs(a - b) > 1e-6 for a, b in zip(*pauses, strict=False))
