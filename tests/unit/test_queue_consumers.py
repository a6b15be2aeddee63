"""How consumers of one queue affect each other, step by step, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from fray_coordinator.clock import RandomSource
from fray_coordinator.errors import StoreRefused
from fray_coordinator.protocol.queue_segments import MAX_CREATE_QUARANTINES
from fray_coordinator.queue import admin
from fray_coordinator.queue.collector import CompletedSegment
from fray_coordinator.queue.dead_letters import open_dead_letters
from fray_coordinator.queue.delivery import EncodedItem, LeaseLost, UnknownLease
from fray_coordinator.queue.held_segment import ClaimLost, HeldSegment, claim
from fray_coordinator.queue.open_queue import standalone_core
from fray_coordinator.store.interface import Listed
from fray_coordinator.store.store import Store
from fray_layouts.queue_keys import SegmentName
from tests.support.queue_processes import NAMES, queue_process
from tests.support.virtual import Cluster, StoreConnection, VirtualClock


async def test_only_one_of_two_concurrent_claims_of_a_segment_wins(cluster: Cluster) -> None:
    """The predecessor moved an item by copy and delete, so that both won."""

    one, two = await queue_process(cluster), await queue_process(cluster)
    await one.push("x")
    (segment,) = [found[0] for key in cluster.keys(NAMES.segments) if (found := NAMES.parse(key))]
    results = await asyncio.gather(claim(one.queue, segment, 60.0), claim(two.queue, segment, 60.0))
    assert {type(result) for result in results} == {HeldSegment, ClaimLost}


class WrongClock(VirtualClock):
    """A clock that is an hour ahead of all others."""

    def wall(self) -> float:
        return super().wall() + 3600.0


async def test_a_host_whose_clock_is_an_hour_ahead_takes_nothing_from_others(cluster: Cluster) -> None:
    """The predecessor let each consumer judge expiry by its own wall clock."""

    one = await queue_process(cluster)
    await one.push("x")
    assert await one.bodies() == ["x"]
    connection, clock, rng = StoreConnection(cluster.contents, cluster.clock), WrongClock(), RandomSource(9)
    connection.local = False
    connection.server_offset = lambda: -3600.0  # type: ignore[method-assign]  # what the dates of its answers told it
    two = await queue_process(cluster, core=standalone_core(Store(connection, clock, rng), clock, rng))
    assert await two.bodies(wait=30.0) == []
    assert await two.bodies(wait=40.0) == ["x"]


async def test_an_observer_takes_over_after_the_time_out_and_the_former_holder_is_told(cluster: Cluster) -> None:
    one, two = await queue_process(cluster), await queue_process(cluster)
    await one.push("a", "b", batch=2)
    first, second = await one.take(2, timeout=20.0)
    await one.consumer.done([first.id])
    began = cluster.clock.boottime()
    assert await two.bodies(wait=100.0) == ["b"]
    assert 20.0 <= cluster.clock.boottime() - began < 30.0
    with pytest.raises(LeaseLost):
        await one.consumer.done([second.id])
    with pytest.raises(UnknownLease):
        await one.consumer.done([second.id])


async def test_a_lease_that_is_extended_is_not_taken(cluster: Cluster) -> None:
    one, two = await queue_process(cluster), await queue_process(cluster)
    await one.push("a")
    (delivery,) = await one.take(timeout=20.0)
    for _ in range(5):
        assert await two.bodies(wait=15.0) == []
        await one.consumer.extend(delivery.id, 20.0)
    await one.consumer.done([delivery.id])


async def test_every_item_of_a_segment_has_two_fifths_of_the_time_out_asked_for_it(cluster: Cluster) -> None:
    """The lease was once written for the first item only, so a later one with a longer time-out went to others."""

    one, two = await queue_process(cluster), await queue_process(cluster)
    await one.push("a", "b", "c", batch=3)
    await one.take(timeout=5.0)
    (long,) = await one.take(timeout=600.0)
    assert long.deadline - one.queue.core.now() >= 0.4 * 600.0
    asked = len(cluster.connections[0].asked)
    (short,) = await one.take(timeout=5.0)
    assert len(cluster.connections[0].asked) == asked, "the longest counts for all: nothing to write"
    assert await two.bodies(wait=300.0) == []
    await one.consumer.done([long.id, short.id])


async def test_items_that_a_consumer_does_not_ask_for_go_to_others_before_the_timeout(cluster: Cluster) -> None:
    one, two = await queue_process(cluster), await queue_process(cluster)
    await one.push("a", "b", batch=2)
    (first,) = await one.take()
    await one.consumer.done([first.id])
    assert await two.bodies(wait=45.0) == ["b"]


async def test_acknowledgements_of_one_second_are_one_write_on_a_bucket(cluster: Cluster) -> None:
    one = await queue_process(cluster)
    await one.push(*map(str, range(50)), batch=50)
    taken = await one.take(50)
    before = len(cluster.connections[0].asked)
    await asyncio.gather(*(one.consumer.done([delivery.id]) for delivery in taken[:20]))
    await asyncio.gather(*(one.consumer.done([delivery.id]) for delivery in taken[20:49]))
    assert [verb for verb, _ in cluster.connections[0].asked[before:]] == ["put", "put"]
    assert (await admin.count_items(one.queue, {})).pending == 1


async def test_finished_segments_are_removed_with_their_leases(cluster: Cluster) -> None:
    one = await queue_process(cluster)
    await one.push("a", "b", "x" * 100_000, batch=3)
    await one.consumer.done([taken.id for taken in await one.take(3)])
    await cluster.clock.sleep(2.0)
    assert cluster.keys(NAMES.all_large) == []
    [lease] = cluster.keys(NAMES.segments)
    assert lease.endswith("~lease")
    await cluster.clock.sleep(27.0)
    assert cluster.keys(NAMES.segments) == [lease], "a late create finds it"
    await cluster.clock.sleep(66.0)
    assert cluster.keys(NAMES.segments) == [], "not before a quarantine more, so that others share the request"
    assert len(cluster.keys(NAMES.finished)) == 1
    await cluster.clock.sleep(2 * 3600.0)
    assert cluster.keys(NAMES.finished) == []


async def test_the_names_of_finished_segments_are_written_before_their_leases_are_deleted(cluster: Cluster) -> None:
    one = await queue_process(cluster)
    await one.push("a")
    [delivery] = await one.take()
    segment = delivery.id.partition("/")[0]
    noted: list[bool] = []

    async def deleted() -> None:
        noted.append(await one.queue.finished.holds(segment))

    cluster.connections[0].before["delete", NAMES.lease(segment)] = deleted
    await one.consumer.done([delivery.id])
    await cluster.clock.sleep(100.0)
    assert noted == [True]


async def test_items_stay_in_order_when_the_storages_clock_goes_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await queue_process(cluster)
    await one.push("a")
    now = one.queue.core.store.now
    monkeypatch.setattr(one.queue.core.store, "now", lambda: now() - 5.0)
    await one.push("b")
    await one.push("c")
    monkeypatch.undo()
    assert await one.bodies(3) == ["a", "b", "c"]


async def test_a_push_whose_ring_is_heard_beside_a_listing_without_it_is_found_soon(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bell is read before the listing: a ring that is heard after it may be for items that it does not show."""
    one, other = await queue_process(cluster), await queue_process(cluster)
    assert await one.bodies() == []
    await cluster.clock.sleep(5.0)
    await other.push("a")
    await cluster.clock.sleep(0.1)
    store, real = one.queue.core.store, one.queue.core.store.list

    async def listed(*given: Any, **named: Any) -> list[Listed]:
        rows = await real(*given, **named)
        monkeypatch.undo()
        await other.push("b")
        await cluster.clock.sleep(2.0)  # so long that it has rung
        return rows

    monkeypatch.setattr(store, "list", listed)
    found = [*await one.bodies(2), *await one.bodies(2, wait=5.0)]
    assert found == ["a", "b"]


async def test_a_ring_is_not_forgotten_if_the_listing_after_it_fails(cluster: Cluster) -> None:
    one, other = await queue_process(cluster), await queue_process(cluster)
    assert await one.bodies() == []
    await cluster.clock.sleep(5.0)
    await other.push("a")
    await cluster.clock.sleep(0.1)
    cluster.connections[0].refused.append(("list", NAMES.segments))
    with pytest.raises(StoreRefused):
        await one.bodies()
    cluster.connections[0].refused.clear()
    assert await one.bodies(wait=1.0) == ["a"]


async def test_two_concurrent_cleanups_forget_no_item_that_is_finished_meanwhile(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who asks for counts clears beside the consumer's own rounds, which do not run here."""
    one = await queue_process(cluster)
    await one.push("a")
    await one.push("b")
    taken = await one.take(2)
    collector = one.consumer._collector
    delete, go, asked = collector._is_cleared, asyncio.Event(), list[str]()

    async def later(finished: CompletedSegment) -> bool:
        asked.append(finished.segment)
        if len(asked) == 2:
            await go.wait()
        return await delete(finished)

    async def no_round() -> None:
        pass

    monkeypatch.setattr(collector, "_is_cleared", later)
    monkeypatch.setattr(collector, "turn", no_round)
    await one.consumer.done([taken[0].id])
    first, second = (asyncio.ensure_future(one.consumer.clear()) for _ in range(2))
    await first
    await one.consumer.done([taken[1].id])
    go.set()
    await second
    await one.consumer.clear()
    assert all(key.endswith("~lease") for key in cluster.keys(NAMES.segments))


async def test_segments_that_a_closed_consumer_finished_are_removed_by_others(cluster: Cluster) -> None:
    one, two = await queue_process(cluster), await queue_process(cluster)
    await one.push("a")
    await one.consumer.done([taken.id for taken in await one.take()])
    await one.consumer.close()
    assert await two.bodies(wait=300.0) == []
    assert cluster.keys(NAMES.segments) == []


@pytest.mark.parametrize("gone", [False, True])
async def test_a_finished_segment_with_a_name_far_in_the_future_does_not_stay_for_ever(
    cluster: Cluster, gone: bool
) -> None:
    """Its consumer and others once kept it until the time in its name."""

    one, other = await queue_process(cluster), await queue_process(cluster)
    await one.producer.create(SegmentName(cluster.clock.wall() + 1e9, 0, "abcdef", 1), [EncodedItem(b"x")])
    (delivery,) = await one.take()
    await one.consumer.done([delivery.id])
    if gone:
        await one.consumer.close()
    quarantine = one.queue.settings.quarantine
    end = cluster.clock.boottime() + (MAX_CREATE_QUARANTINES + 3) * quarantine
    while cluster.clock.boottime() < end:
        assert await other.bodies(wait=quarantine / 4) == []
    assert cluster.keys(NAMES.segments) == []


async def test_a_segment_that_came_late_is_handed_out(cluster: Cluster) -> None:
    one = await queue_process(cluster)

    async def stall() -> None:
        await cluster.clock.sleep(40.0)

    cluster.connections[0].before["put", NAMES.segments] = stall
    await one.push("late")
    assert len(cluster.keys(NAMES.segments)) == 1
    assert await one.bodies(3) == ["late"]


def rewritten(cluster: Cluster) -> None:
    """Store the same bytes again, as chmod -R, cp -a, a restored backup or a copy of a bucket may do."""
    for key, found in list(cluster.contents.objects.items()):
        cluster.contents.objects[key] = replace(found, updated=cluster.clock.wall())


@pytest.mark.parametrize("local", [True, False])
async def test_a_later_modification_time_of_a_segment_voids_nothing(cluster: Cluster, local: bool) -> None:
    """Consumers once deleted every segment that waited."""

    one = await queue_process(cluster, local)
    await one.push(*"abcdef", batch=2)
    taken = await one.take(3)
    await one.consumer.done([delivery.id for delivery in taken])
    for _ in range(3):
        await cluster.clock.sleep(300.0)
        rewritten(cluster)
    two = await queue_process(cluster, local)
    assert sorted(await two.bodies(9)) == ["d", "e", "f"]


async def test_a_create_that_lands_again_after_its_items_were_done_brings_nothing_back(cluster: Cluster) -> None:
    one = await queue_process(cluster)
    await one.push("a")
    [key] = cluster.keys(NAMES.segments)
    segment = cluster.contents.objects[key]
    await one.consumer.done([taken.id for taken in await one.take()])
    for seconds in (5.0, 100.0, 2000.0):
        await cluster.clock.sleep(seconds)
        assert key not in cluster.contents.objects
        cluster.contents.set(key, replace(segment, updated=cluster.clock.wall()))
        assert await one.bodies(wait=300.0) == []
        two = await queue_process(cluster)
        assert await two.bodies(wait=300.0) == []
        assert cluster.keys(NAMES.segments) == []


async def test_a_consumer_whose_acknowledgements_are_refused_takes_no_item_that_may_be_among_them(
    cluster: Cluster,
) -> None:
    """Otherwise a burst of refusals would bring acknowledged items back, and have effects after its end."""

    one, two = await queue_process(cluster), await queue_process(cluster)
    await one.push("a")
    [key] = cluster.keys(NAMES.segments)
    segment = cluster.contents.objects[key]
    await one.consumer.done([taken.id for taken in await one.take()])
    await cluster.clock.sleep(100.0)
    cluster.contents.set(key, replace(segment, updated=cluster.clock.wall()))
    cluster.connections[1].refused = [("get", NAMES.finished)]
    with pytest.raises(StoreRefused):
        await two.take()
    await two.push("b")
    (other,) = await two.take(wait=60.0)
    assert other.item.body == b"b"
    await two.consumer.done([other.id])
    cluster.connections[1].refused = []
    assert await two.bodies(wait=300.0) == []


async def test_a_waiting_consumer_sees_a_push_within_its_next_poll(cluster: Cluster) -> None:
    one, two = await queue_process(cluster), await queue_process(cluster)
    waiting = asyncio.create_task(two.bodies(wait=1000.0))
    await cluster.clock.sleep(30.0)
    asked = len(cluster.connections[1].asked)
    lists = [verb for verb, _ in cluster.connections[1].asked].count("list")
    assert lists == 1
    assert asked < 20
    await one.push("x")
    began = cluster.clock.boottime()
    assert await waiting == ["x"]
    assert cluster.clock.boottime() - began < 8.0


async def test_a_suspect_is_handed_out_when_nothing_else_is_out(cluster: Cluster) -> None:
    one, two = await queue_process(cluster), await queue_process(cluster)
    await one.push("a", "b", "c", batch=1)
    await one.take(timeout=5.0)
    (busy,) = await two.take()
    assert busy.item.body in (b"b", b"c")
    await cluster.clock.sleep(10.0)
    assert await two.bodies() == [], "a is a suspect now, and another is out"
    await two.consumer.done([busy.id])
    (suspect,) = await two.take(2)
    assert suspect.item.body == b"a"
    assert await two.bodies() == [], "it stays alone"
    await two.consumer.done([suspect.id])
    assert await two.bodies() == ["c" if busy.item.body == b"b" else "b"]


async def test_a_close_gives_everything_back_and_takes_the_marks_back(cluster: Cluster) -> None:
    await (await queue_process(cluster)).push("a", "b", batch=2)
    for _ in range(5):
        one = await queue_process(cluster)
        await one.take(2, timeout=5.0)
        await one.consumer.close()
    two = await queue_process(cluster)
    assert await two.bodies(2) == ["a", "b"]
    assert await admin.peek_items(await open_dead_letters(two.queue), {}, 5) == []


async def test_counts_and_peek_include_items_that_others_hold(cluster: Cluster) -> None:
    one, two = await queue_process(cluster), await queue_process(cluster)
    await one.push("a", "b", "c", batch=2)
    (first,) = await one.take()
    mine = await admin.count_items(one.queue, one.consumer.held)
    theirs = await admin.count_items(two.queue, two.consumer.held)
    assert (mine.available, mine.pending) == (2, 1)
    assert (theirs.available, theirs.pending) == (1, 2)
    assert [p.item.body for p in await admin.peek_items(two.queue, {}, 5)] == [b"c"]
    await one.consumer.release([first.id])
    assert [p.item.body for p in await admin.peek_items(two.queue, {}, 5)] == [b"a", b"b", b"c"]


async def test_an_item_whose_completion_was_refused_is_still_held_and_can_be_done_again(cluster: Cluster) -> None:
    """Done, release and extend: a refusal is like an outage to a consumer, and its item stays out."""

    one = await queue_process(cluster)
    connection = cluster.connections[-1]
    await one.push("a", "b", batch=2)
    first, second = await one.take(2, timeout=60.0)
    connection.refused = [(verb, "q/") for verb in ("put", "get", "list", "delete", "get_if_changed")]
    for end in (one.consumer.done, one.consumer.release):
        with pytest.raises(StoreRefused):
            await end([first.id])
    await asyncio.sleep(10)
    connection.refused = []
    await one.consumer.done([first.id])
    await one.consumer.extend(second.id, 60.0)
    await one.consumer.done([second.id])
    await asyncio.sleep(200)
    assert await one.bodies() == []
    assert cluster.keys(NAMES.segments) == [], "it tends what is finished again"
