"""Concurrent calls of one process: a segment that was lost and claimed anew meanwhile is another claim."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fray.queue.file_queue import FileEngine
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.queue.admin import count_items
from fray_coordinator.queue.delivery import EncodedItem, UnknownLease
from fray_coordinator.queue.handout import Handout
from fray_coordinator.store.interface import ANY, Listed
from fray_coordinator.store.store import Store
from tests.support.queue_processes import NAMES, queue_process
from tests.support.virtual import Cluster, StoreConnection


def slow_by_turns(connection: StoreConnection, seconds: float) -> None:
    """Every second request takes less than half as long, so that replies overtake one another."""
    near = connection._pass

    async def passed(verb: str, key: str) -> None:
        await asyncio.sleep(seconds if len(connection.asked) % 2 else 0.4 * seconds)
        await near(verb, key)

    connection._pass = passed  # type: ignore[method-assign]


def once_slow(
    store: Store, monkeypatch: pytest.MonkeyPatch, seconds: float, sleep: Callable[[float], Awaitable[None]]
) -> None:
    """Let the reply of the next listing of receipts come late."""
    real, late = store.list, [True]

    async def listed(prefix: str, *more: Any) -> list[Listed]:
        rows = await real(prefix, *more)
        if prefix.startswith(NAMES.receipts) and late:
            late.clear()
            await sleep(seconds)
        return rows

    monkeypatch.setattr(store, "list", listed)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a take"])
async def test_done_raises_if_others_took_the_item_before_the_receipt_was_written(
    cluster: Cluster, beside: bool
) -> None:
    """Once a take of another thread dropped the lost claims, and `done` counted what had gone as done."""
    one, other = await queue_process(cluster), await queue_process(cluster)
    await one.push(*"ab", batch=1)
    leases = [delivery.id for delivery in await one.take(2)]
    assert await other.bodies() == [], "it sees both leases"
    found: list[str] = []

    async def late() -> None:
        await cluster.clock.sleep(65.0)
        found.extend(await other.bodies(2))
        if beside:
            await one.take(1)

    cluster.connections[0].before["put", NAMES.receipts] = late
    with pytest.raises(UnknownLease) as raised:
        await one.consumer.done(leases)
    assert found == ["a"]
    assert leases[0] in raised.value.leases


async def test_items_that_are_released_while_an_earlier_receipt_is_written_are_not_done(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fray_coordinator.queue.held_segments.MAX_RECEIPT_SEGMENTS", 2)
    one = await queue_process(cluster)
    await one.push(*"abcd", batch=1)
    leases = [delivery.id for delivery in await one.take(4)]

    async def release() -> None:
        await one.consumer.release(leases[2:])

    cluster.connections[0].before["put", NAMES.receipts] = release
    with pytest.raises(UnknownLease) as raised:
        await one.consumer.done(leases)
    assert set(raised.value.leases) == set(leases[2:])
    assert await one.bodies(4) == ["c", "d"]


@pytest.mark.parametrize("seconds", [0.0, 0.3])
async def test_takes_that_find_all_leases_expired_at_once_lose_no_item(cluster: Cluster, seconds: float) -> None:
    """Once the slower of them dropped the new claims of the quicker one, which were held and never handed out."""
    one = await queue_process(cluster)
    slow_by_turns(cluster.connections[0], seconds)
    await one.push(*map(str, range(12)), batch=3)
    for count in (3, 2, 4, 1):
        await one.take(count)
    await cluster.clock.sleep(70.0)
    found: list[str] = []

    async def work() -> None:
        for _ in range(20):
            for delivery in await one.take(1):
                found.append(delivery.item.body.decode())
                await one.consumer.done([delivery.id])
            await cluster.clock.sleep(0.5)

    await asyncio.gather(*(work() for _ in range(4)))
    assert sorted(found, key=int) == [str(number) for number in range(12)]


async def test_a_take_leaves_a_lease_that_is_just_being_renewed(cluster: Cluster) -> None:
    one = await queue_process(cluster)
    await one.push("a")
    [delivery] = await one.take()

    async def late() -> None:
        await cluster.clock.sleep(61.0)
        assert await one.take() == []

    cluster.connections[0].before["put", NAMES.segments] = late
    await one.consumer.extend(delivery.id, 60.0)
    await one.consumer.done([delivery.id])


async def test_an_expired_segment_that_is_spoilt_keeps_no_other_from_being_taken_back(cluster: Cluster) -> None:
    """Once the caller got the error, and the lease of the spoilt segment stayed as it was."""
    one = await queue_process(cluster)
    await one.push(*"ab", batch=1)
    taken = await one.take(2)
    await cluster.clock.sleep(61.0)
    await one.queue.core.store.put(NAMES.segment(taken[0].id.partition("/")[0]), b"no segment", ANY)
    assert await one.bodies(2) == ["b"]


async def test_items_taken_while_others_are_given_back_stay_taken(cluster: Cluster) -> None:
    """Once the list of unused segments was made before the first of them was given back."""
    one = await queue_process(cluster)
    await one.push(*map(str, range(40)), batch=1)
    taken = await one.take(40)
    one.consumer.put_back([delivery.id for delivery in taken])
    mine: list[str] = []

    async def take() -> None:
        mine.extend(delivery.id for delivery in await one.take(24))

    cluster.connections[0].before["put", NAMES.segments] = take
    await one.consumer.give_back_unused()
    assert len(mine) == 24
    await one.consumer.done(mine)


async def test_a_release_whose_reply_is_lost_leaves_the_next_claim_alone(cluster: Cluster) -> None:
    one, other = await queue_process(cluster), await queue_process(cluster)
    await one.push(*"ab", batch=2)
    leases = [delivery.id for delivery in await one.take(2)]
    connection = cluster.connections[0]
    connection.unanswered.append(("put", NAMES.segments))
    releasing = asyncio.ensure_future(one.consumer.release(leases))
    assert await one.take() == [], "it is on its way back"
    with pytest.raises(StoreUnavailable):
        await releasing
    connection.unanswered.clear()
    await one.consumer.release(leases)
    assert await other.bodies(2) == ["a", "b"]


@pytest.mark.parametrize("local", [True, False])
async def test_users_with_different_time_outs_get_what_they_asked_for(cluster: Cluster, local: bool) -> None:
    """Once the items taken ahead for one of them went to the other."""
    one = await queue_process(cluster, local)
    slow_by_turns(cluster.connections[0], 0.001)
    await one.push(*map(str, range(300)), batch=1)
    handout = Handout(one.queue, one.consumer, one.isolation)
    short: list[tuple[float, float]] = []

    async def use(timeout: float) -> None:
        for _ in range(100):
            ready = handout.pop(timeout)
            for delivery in [ready] if ready else await handout.refill(1, timeout, 0.0):
                left = delivery.deadline - one.queue.core.now()
                if left < 0.4 * timeout:
                    short.append((timeout, left))
                await cluster.clock.sleep(0.001)
                handout.done(delivery.id)

    await asyncio.gather(use(10.0), use(1000.0))
    assert short == []


async def test_a_receipt_that_a_slower_listing_does_not_show_is_still_known(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the slower of two listings made the process forget what the quicker one had shown."""
    one, other = await queue_process(cluster), await queue_process(cluster)
    await one.push(*"abcd", batch=1)
    taken = [delivery.id for delivery in await one.take(4)]
    (first, _, owner, _), (third, _, another, _) = taken[0].split("/"), taken[2].split("/")
    log = other.queue.receipts
    once_slow(other.queue.core.store, monkeypatch, 1.0, cluster.clock.sleep)
    early = asyncio.ensure_future(log.names(third, another))
    await cluster.clock.sleep(0.01)
    await one.consumer.done(taken[:2])
    await cluster.clock.sleep(0.01)
    await one.consumer.done(taken[2:])
    reads = cluster.connections[1].before

    async def let_the_next_be_slow() -> None:
        reads["get", NAMES.receipts] = lambda: cluster.clock.sleep(2.0)

    reads["get", NAMES.receipts] = let_the_next_be_slow
    assert await log.names(first, owner)
    assert not await early, "there was none when it looked"


async def test_a_purge_takes_what_was_taken_ahead_while_it_ran(cluster: Cluster) -> None:
    one = await queue_process(cluster)
    engine = FileEngine(one.queue)
    await engine.push([EncodedItem(b"x")] * 40, 1)
    for _ in range(4):
        [delivery] = [engine.take_now(60.0)] if engine._handout._ready else await engine.take(1, 60.0, 0.0)
        assert delivery is not None
        assert engine.done_now(delivery.id)
        await cluster.clock.sleep(0.001)

    async def take() -> None:
        await engine.take(1, 60.0, 0.0)
        assert engine._handout._ready, "some were taken ahead"

    cluster.connections[0].before["list", NAMES.segments] = take
    assert await engine.purge() == 36
    assert engine.take_now(60.0) is None
    assert await engine.take(1, 60.0, 0.0) == []


async def test_an_item_whose_end_is_being_written_counts_until_that_is_written(cluster: Cluster) -> None:
    one = await queue_process(cluster)
    await one.push("a", "b", batch=2)
    taken = await one.take(1)
    done = asyncio.ensure_future(one.consumer.done([taken[0].id]))
    await asyncio.sleep(0)
    counts = await count_items(one.queue, one.consumer.held)
    assert counts.available + counts.pending == 2
    await done
    counts = await count_items(one.queue, one.consumer.held)
    assert (counts.available, counts.pending) == (1, 0)
