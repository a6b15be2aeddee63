"""Receipts, of which each is one write that acknowledges many segments: what happens if its writer dies or is late."""

from __future__ import annotations

import asyncio

import pytest

from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.queue import receipts
from fray_coordinator.queue.delivery import LeaseLost
from tests.support.queue_processes import NAMES, QueueProcess, queue_process
from tests.support.virtual import Cluster


async def taken(worker: QueueProcess, count: int, timeout: float = 60.0) -> list[str]:
    return [delivery.id for delivery in await worker.take(count, timeout)]


async def test_items_by_themselves_that_are_done_together_are_one_write(cluster: Cluster) -> None:
    one = await queue_process(cluster)
    await one.push(*map(str, range(40)), batch=1)
    leases = await taken(one, 40)
    before = len(cluster.connections[0].asked)
    await one.consumer.done(leases)
    assert [verb for verb, _ in cluster.connections[0].asked[before:]] == ["put"]
    await cluster.clock.sleep(120.0)
    assert await one.queue.core.store.list(NAMES.segments) == []
    assert await one.queue.core.store.list(NAMES.receipts) == [], "its writer removes it when the leases are gone"


async def test_items_acknowledged_before_a_consumer_died_never_come_back(cluster: Cluster) -> None:
    dead, other = await queue_process(cluster), await queue_process(cluster)
    await dead.push(*"abc", batch=1)
    leases = await taken(dead, 3)
    dead.consumer._collector.clear = lambda: asyncio.sleep(0)  # type: ignore[method-assign]
    await dead.consumer.done(leases[:2])
    dead.consumer._maintenance.cancel()  # type: ignore[union-attr]
    await cluster.clock.sleep(70.0)
    found: list[str] = []
    for _ in range(20):
        for delivery in await other.take(3):
            found.append(delivery.item.body.decode())
            await other.consumer.done([delivery.id])
        await cluster.clock.sleep(20.0)
    assert found == ["c"]
    assert await other.queue.core.store.list(NAMES.segments) == []


@pytest.mark.parametrize("meanwhile", [False, True], ids=["nobody else was there", "another took them over"])
async def test_a_receipt_that_is_too_late_acknowledges_nothing(cluster: Cluster, meanwhile: bool) -> None:
    one, other, third = [await queue_process(cluster) for _ in range(3)]
    await one.push(*"ab", batch=1)
    leases = await taken(one, 2)
    found: list[str] = []

    async def late() -> None:
        await cluster.clock.sleep(70.0)
        if meanwhile:
            found.extend(await other.bodies(2))  # one: it may have killed its former consumer

    if meanwhile:
        assert await other.bodies() == []
    cluster.connections[0].before["put", NAMES.receipts] = late
    if not meanwhile:
        await one.consumer.done(leases)
        assert await other.bodies() == []
        return
    with pytest.raises(LeaseLost) as raised:
        await one.consumer.done(leases)
    assert raised.value.leases == (leases[0],), "b was still its own"
    assert found == ["a"]
    await other.consumer.close()
    assert await third.bodies(2) == ["a"], "a receipt of a former claim says nothing"


async def test_the_content_of_old_receipts_is_carried_over_before_they_are_deleted(cluster: Cluster) -> None:
    dead, other = await queue_process(cluster), await queue_process(cluster)
    await dead.push(*"ab", batch=1)
    leases = await taken(dead, 2)
    dead.consumer._collector.clear = lambda: asyncio.sleep(0)  # type: ignore[method-assign]
    await dead.consumer.done(leases)
    dead.consumer._maintenance.cancel()  # type: ignore[union-attr]
    await cluster.clock.sleep(4000.0)
    await other.queue.receipts.sweep(other.queue.settings.quarantine)
    assert await other.queue.core.store.list(NAMES.receipts) == []
    assert await other.bodies(2) == []


async def test_a_receipt_stays_until_the_last_lease_that_it_speaks_for_is_gone(cluster: Cluster) -> None:
    dead, other = await queue_process(cluster), await queue_process(cluster)
    await dead.push("a")
    await cluster.clock.sleep(40.0)
    await dead.push("b")
    leases = await taken(dead, 2)
    cluster.connections[0].unanswered.append(("delete", NAMES.segment(leases[1].partition("/")[0])))
    await dead.consumer.done(leases)
    while len([key for key in cluster.keys(NAMES.segments) if key.endswith("~lease")]) == 2:
        await cluster.clock.sleep(1.0)
    await cluster.clock.sleep(2.0)
    cluster.connections[0].cut = True
    await cluster.clock.sleep(70.0)
    assert await other.bodies(2) == [], "b is done"


async def test_who_takes_over_reads_the_receipts_of_that_consumer_only(cluster: Cluster) -> None:
    """Once it read, and kept, those of all consumers: a gigabyte in a large fleet."""
    dead, busy, other = [await queue_process(cluster) for _ in range(3)]
    await dead.push(*"abcde", batch=1)
    leases = await taken(dead, 5)
    await dead.consumer.done(leases[:2])
    for _ in range(30):
        await busy.push("x", "y", batch=1)
        await busy.consumer.done(await taken(busy, 2))
        await cluster.clock.sleep(1.0)
    cluster.connections[0].cut = True
    await cluster.clock.sleep(31.0)
    before = len(cluster.connections[2].asked)
    assert await other.bodies(wait=30.0) == ["c"]
    read = [key for verb, key in cluster.connections[2].asked[before:] if (verb, key[:11]) == ("get", NAMES.receipts)]
    assert len(read) == 1, "of its two items; the others it had not done"


async def test_a_process_remembers_a_bounded_part_of_what_it_reads(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "MAX_REMEMBERED_NAMES", 10)
    one, other = await queue_process(cluster), await queue_process(cluster)
    claims: list[list[str]] = []
    for _ in range(9):
        await one.push("a", "b", batch=1)
        leases = await taken(one, 2)
        claims += [lease.split("/") for lease in leases]
        await one.consumer.done(leases)
    assert all([await other.queue.receipts.names(segment, owner) for segment, _, owner, _ in claims])
    assert len(other.queue.receipts._memory._known) <= 3, "of two claims each"
    assert not await other.queue.receipts.names(claims[0][0], claims[1][2])


async def test_sweeps_go_on_where_the_last_one_ended(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "SWEEP_PAGE", 2)
    dead, other = await queue_process(cluster), await queue_process(cluster)
    for number in range(5):
        await dead.queue.receipts.write({f"{dead.queue.consumer}{number}": ["0" * 18 + "-1"]})
    await cluster.clock.sleep(4000.0)
    for _ in range(3):
        await other.queue.receipts.sweep(other.queue.settings.quarantine)
    assert await other.queue.core.store.list(NAMES.receipts) == []


async def test_beside_a_write_that_may_still_land_there_is_no_receipt(cluster: Cluster) -> None:
    """Once an unanswered release landed after the receipt, and the acknowledged items were free again."""
    one = await queue_process(cluster)
    await one.push(*"abc", batch=1)
    leases = await taken(one, 3, timeout=600.0)
    connection = cluster.connections[0]
    connection.unanswered.append(("put", NAMES.segments))
    with pytest.raises(StoreUnavailable):
        await one.consumer.release(leases[:1])
    connection.unanswered.clear()
    before = len(connection.asked)
    await one.consumer.done(leases)
    written = [key for verb, key in connection.asked[before:] if verb == "put"]
    assert len([key for key in written if key.startswith(NAMES.receipts)]) == 1
    assert len([key for key in written if key.startswith(NAMES.segments)]) == 1, "its lease says of a that it is done"
