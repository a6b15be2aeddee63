"""The engines behind queues, each kind of them, below the public API; in virtual time."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from fray.queue import FileQueue, MemoryQueue
from fray.queue.file_queue import FileEngine
from fray_coordinator.protocol.queue_segments import LARGE_ITEM_BYTES, batch_size, dead_letter_name
from fray_coordinator.queue.collector import SWEEP_PAGE, Collector
from fray_coordinator.queue.delivery import UnknownLease
from fray_coordinator.store.interface import ABSENT
from fray_layouts.errors import InvalidInput
from fray_layouts.queue_keys import SegmentName
from tests.support.queue_engines import KINDS, World, bodies, push
from tests.support.queue_processes import queue_process
from tests.support.virtual import Cluster


@KINDS
async def test_purged_items_are_not_delivered_and_their_holder_gets_an_error(cluster: Cluster, kind: str) -> None:
    """The process that purged once went on handing out the items that it held."""

    world = World(cluster, kind)
    engine, me = await world.engine(), world.process("me")
    await push(engine, "a", "b", "c", batch=3)
    (one,) = await engine.take(1, 60.0, 0.0, me)
    assert await engine.purge() == 3
    await push(engine, "new")
    assert bodies(await engine.take(3, 60.0, 0.0, me)) == ["new"]
    with pytest.raises(UnknownLease, match="purged"):
        await engine.done([one.id])


@KINDS
@pytest.mark.parametrize("seconds", [0, -1.0, float("inf"), float("nan"), 10**400, "60", None], ids=repr)
async def test_a_time_out_that_no_record_can_hold_is_refused_and_the_queue_goes_on(
    cluster: Cluster, kind: str, seconds: Any
) -> None:
    """Once nobody could read an endless lease, and the consumer that had extended an item to one was gone."""

    engine = await World(cluster, kind).engine()
    await push(engine, "a")
    with pytest.raises(InvalidInput, match="lease_timeout"):
        await engine.take(1, seconds, 0.0)
    (one,) = await engine.take(1, 60.0, 0.0)
    with pytest.raises(InvalidInput, match="seconds"):
        await engine.extend(one.id, seconds)
    assert (await engine.counts()).pending == 1
    await engine.done([one.id])


@KINDS
async def test_a_dead_letter_says_how_often_it_was_delivered(cluster: Cluster, kind: str) -> None:
    """The letter of an unreadable item once said one time in memory, and none in storage."""

    engine = await World(cluster, kind).engine()
    await push(engine, "unreadable", "failing", batch=1)
    unreadable, failing = await engine.take(2, 60.0, 0.0)
    await engine.give_up(unreadable.id, "it cannot be read")
    await engine.release([failing.id], True)
    (again,) = await engine.take(1, 60.0, 0.0)
    await engine.release([again.id], True)
    assert await engine.take(1, 60.0, 0.0) == []
    found = {letter.item.body: letter.origin.deliveries for letter in await engine.letters(5) if letter.origin}
    assert found == {b"unreadable": 1, b"failing": 2}


@KINDS
async def test_a_lease_that_ran_out_is_not_counted_as_pending(cluster: Cluster, kind: str) -> None:
    engine = await World(cluster, kind).engine()
    await push(engine, "a", "b", batch=2)
    await engine.take(1, 10.0, 0.0)
    await cluster.clock.sleep(13.0)
    counts = await engine.counts()
    assert (counts.available, counts.pending) == (2, 0)
    assert [peeked.item.body for peeked in await engine.peek(2)] == [b"a", b"b"]


@KINDS
async def test_a_deadline_is_counted_from_the_hand_out(cluster: Cluster, kind: str) -> None:
    """It was once counted from the call, so a consumer that waited long for an item had a deadline in the past."""

    engine = await World(cluster, kind).engine()
    waiting = asyncio.create_task(engine.take(1, 10.0, 60.0))
    await cluster.clock.sleep(30.0)
    await push(engine, "a")
    (one,) = await waiting
    assert one.taken_at >= cluster.clock.wall() - 6.0
    assert one.taken_at + 4.0 <= one.deadline <= cluster.clock.wall() + 10.0


@pytest.mark.parametrize("most", [-1, 2.5, "3", float("inf")], ids=repr)
def test_a_maximum_that_cannot_be(most: Any, tmp_path: Path) -> None:
    for make in (MemoryQueue[int], partial(FileQueue[int], tmp_path)):
        with pytest.raises(InvalidInput, match="max_deliveries"):
            make(max_deliveries=most)


def test_no_segment_is_larger_than_its_dead_letters_can_be_told_apart() -> None:
    """Once two items of one segment had the same letter, and a segment of a million had an unreadable name."""
    most = batch_size(2_000_000, 1_200_000)
    assert len({str(dead_letter_name(0.0, "segment", item)) for item in range(most)}) == most
    assert SegmentName.parse(str(SegmentName(0.0, 0, "000000", most))) is not None


async def test_large_items_without_a_segment_are_found_behind_any_number_of_others(cluster: Cluster) -> None:
    """Once consumers looked at the first thousand only."""

    one = await queue_process(cluster)
    store, names = one.queue.core.store, one.queue.keys
    await one.push(*["x" * LARGE_ITEM_BYTES] * 3, batch=3)
    (row, *_) = await store.list(names.all_large)
    found = names.parse_large(row.key)
    assert found is not None
    for item in range(3, SWEEP_PAGE):
        await store.put(names.large(found[0], item), b"another of this segment", ABSENT)
    await cluster.clock.sleep(1.0)
    orphan = names.large(str(SegmentName(one.queue.core.now(), 0, "zzzzzz", 1)), 0)
    await store.put(orphan, b"no segment came", ABSENT)
    await cluster.clock.sleep(2 * 3600.0)
    collector, asked = Collector(one.queue), len(cluster.connections[0].asked)
    await collector.sweep_large()
    assert len(cluster.connections[0].asked) - asked == 2, "a page, and the segment of its items"
    assert orphan in cluster.keys(names.all_large)
    await collector.sweep_large()
    assert orphan not in cluster.keys(names.all_large)
    assert len(cluster.keys(names.all_large)) == SWEEP_PAGE


async def test_an_engine_whose_taken_items_cannot_be_given_back_is_closed_all_the_same(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once its consumer kept looking after the queue when giving items back had raised something unexpected."""
    engine = await World(cluster, "files").engine()
    assert isinstance(engine, FileEngine)

    async def odd() -> None:
        raise ValueError("odd")

    closed = AsyncMock()
    monkeypatch.setattr(engine._handout, "close", odd)
    monkeypatch.setattr(engine._consumer, "close", closed)
    with pytest.raises(ValueError, match="odd"):
        await engine.close()
    closed.assert_awaited_once()
