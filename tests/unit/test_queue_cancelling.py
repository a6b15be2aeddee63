"""Items of a queue that are cancelled: which ones, beside whom, and what an unfinished cancellation leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.queue import admin
from fray_coordinator.queue.cancelling import CANCEL_TIMEOUT
from fray_coordinator.queue.delivery import EncodedItem, UnknownLease
from fray_coordinator.store.interface import Applied, Expectation, Unknown
from fray_layouts.queue_keys import ItemPlace, SegmentName
from tests.support.queue_processes import NAMES, QueueProcess, queue_process
from tests.support.virtual import Cluster


class Driver:
    """A process that pushes items and cancels some. noted: bodies whose end it has noted."""

    def __init__(self, process: QueueProcess) -> None:
        self.process = process
        self.places: dict[str, ItemPlace] = {}
        self.noted: list[str] = []

    @staticmethod
    async def on(cluster: Cluster) -> Driver:
        return Driver(await queue_process(cluster))

    async def push(self, bodies: str, batch: int = 1) -> None:
        items = [EncodedItem(body.encode()) for body in bodies]
        names = await self.process.producer.push(items, batch)
        self.places.update(zip(bodies, [place for name in names for place in name.places()], strict=True))

    async def cancel(self, bodies: str) -> str:
        """Cancel these; returns those that were cancelled."""
        named = {place: body for body, place in self.places.items()}

        async def note(places: Sequence[ItemPlace]) -> None:
            self.noted += [named[place] for place in places]

        done = await self.process.consumer.cancel([self.places[body] for body in bodies], note)
        return "".join(sorted(named[place] for place in done))


async def left(process: QueueProcess, wait: float = 0.0) -> str:
    """All items that a consumer still gets; it completes them."""
    found = ""
    while taken := await process.take(10, wait=wait):
        found += "".join(delivery.item.body.decode() for delivery in taken)
        await process.consumer.done([delivery.id for delivery in taken])
    return found


@pytest.mark.parametrize("batch", [1, 2, 6])
async def test_only_the_cancelled_items_of_a_segment_are_never_handed_out(cluster: Cluster, batch: int) -> None:
    driver, worker = await Driver.on(cluster), await queue_process(cluster)
    await driver.push("abcdef", batch)
    assert await driver.cancel("bce") == "bce"
    assert await driver.cancel("c") == "", "it is done"
    assert await driver.cancel("cf") == "f", "the segment was given back at once"
    assert sorted(driver.noted) == list("bcef")
    assert (await admin.count_items(worker.queue, {})).available == 2
    assert sorted(await left(worker)) == ["a", "d"]


async def test_what_a_consumer_has_is_not_cancelled(cluster: Cluster) -> None:
    driver, worker = await Driver.on(cluster), await queue_process(cluster)
    await driver.push("abcd", 2)
    (first,) = await worker.take()
    assert await driver.cancel("abc") == "c"
    await worker.consumer.done([first.id])
    assert await left(worker) == "bd"
    assert await driver.cancel("abcd") == ""
    assert driver.noted == ["c"]


async def test_an_item_that_came_back_can_be_cancelled(cluster: Cluster) -> None:
    driver, worker, dead = await Driver.on(cluster), await queue_process(cluster), await queue_process(cluster)
    await driver.push("ab")
    (released,) = await worker.take()
    await worker.consumer.release([released.id])
    assert await driver.cancel("a") == "a"
    await dead.take(timeout=10.0)
    assert await driver.cancel("b") == ""
    await cluster.clock.sleep(15.0)
    assert await driver.cancel("b") == "b"
    assert await left(worker) == ""


@pytest.mark.parametrize("verb", ["put", "get"])
async def test_a_consumer_that_comes_first_wins(cluster: Cluster, verb: str) -> None:
    """Before the canceller's claim, or while it reads what it has claimed."""
    driver, worker = await Driver.on(cluster), await queue_process(cluster)
    await driver.push("a")
    taken: list[str] = []

    async def meanwhile() -> None:
        taken.extend(await worker.bodies())

    cluster.connections[0].before[(verb, NAMES.segments)] = meanwhile
    cancelled = await driver.cancel("a")
    assert (cancelled, taken) == (("", ["a"]) if verb == "put" else ("a", []))


async def test_an_end_that_cannot_be_noted_leaves_the_item_to_others_at_once(cluster: Cluster) -> None:
    driver, worker = await Driver.on(cluster), await queue_process(cluster)
    await driver.push("ab", 2)

    async def note(places: Sequence[ItemPlace]) -> None:
        raise StoreUnavailable("not now")

    assert await driver.process.consumer.cancel([driver.places["a"]], note) == set()
    assert await left(worker) == "ab"


async def test_a_canceller_that_dies_leaves_the_item_to_others_after_a_while(cluster: Cluster) -> None:
    driver, worker = await Driver.on(cluster), await queue_process(cluster)
    await driver.push("ab", 2)
    noted = asyncio.Event()

    async def note(places: Sequence[ItemPlace]) -> None:
        cluster.connections[0].cut = True  # nothing that it sends from now on arrives
        noted.set()

    dying = asyncio.ensure_future(driver.process.consumer.cancel([driver.places["a"]], note))
    await noted.wait()
    assert await worker.bodies() == []
    assert await left(worker, wait=CANCEL_TIMEOUT + 30.0) == "ab"
    assert await dying == set(), "another consumer had the segment"


async def test_a_canceller_that_was_frozen_cancels_nothing_that_others_took(cluster: Cluster) -> None:
    driver, worker = await Driver.on(cluster), await queue_process(cluster)
    await driver.push("a")
    taken: list[Any] = []

    async def note(places: Sequence[ItemPlace]) -> None:
        taken.extend(await worker.take(wait=CANCEL_TIMEOUT + 30.0))

    assert await driver.process.consumer.cancel([driver.places["a"]], note) == set()
    await worker.consumer.done([delivery.id for delivery in taken])


async def test_a_lost_reply_changes_no_answer(cluster: Cluster) -> None:
    driver, worker = await Driver.on(cluster), await queue_process(cluster)
    await driver.push("abc", 3)
    connection, writes = cluster.connections[0], 0
    put = connection.put

    async def unanswered(key: str, data: bytes, expect: Expectation) -> Applied:
        nonlocal writes
        applied = await put(key, data, expect)
        writes += 1
        if writes % 2:
            raise Unknown("the reply is lost")
        return applied

    connection.put = unanswered  # type: ignore[method-assign]
    assert await driver.cancel("b") == "b"
    assert await left(worker) == "ac"


async def test_one_segment_that_cannot_be_claimed_keeps_no_other_from_being_cancelled(cluster: Cluster) -> None:
    driver, worker = await Driver.on(cluster), await queue_process(cluster)
    await driver.push("abc")
    cluster.connections[0].refused.append(("put", NAMES.lease(driver.places["b"].segment)))
    assert await driver.cancel("abc") == "ac"
    cluster.connections[0].refused.clear()
    assert await left(worker) == "b"


async def test_a_segment_of_which_all_is_cancelled_is_collected(cluster: Cluster) -> None:
    driver = await Driver.on(cluster)
    await driver.push("ab", 2)
    assert await driver.cancel("ab") == "ab"
    await cluster.clock.sleep(3 * driver.process.queue.settings.quarantine)
    assert cluster.keys(NAMES.segments) == []


async def test_calls_of_several_threads_for_one_segment_cancel_no_item_twice(cluster: Cluster) -> None:
    driver, worker = await Driver.on(cluster), await queue_process(cluster)
    await driver.push("abcd", 4)
    answers = await asyncio.gather(*(driver.cancel(body) for body in "abc"))
    cancelled = "".join(answers)
    assert cancelled
    assert sorted(cancelled + await left(worker)) == list("abcd")


async def test_a_segment_set_aside_stays_aside(cluster: Cluster) -> None:
    driver, worker = await Driver.on(cluster), await queue_process(cluster)
    await driver.push("a")
    key = NAMES.segment(driver.places["a"].segment)
    cluster.contents.objects[key] = replace(cluster.contents.objects[key], data=b"no segment")
    assert await driver.cancel("a") == ""
    lease = cluster.contents.objects[NAMES.lease(driver.places["a"].segment)]
    assert await driver.cancel("a") == ""
    assert cluster.contents.objects[NAMES.lease(driver.places["a"].segment)] == lease
    assert (await admin.count_items(worker.queue, {})).problems == 1


async def test_an_item_that_is_out_under_a_lost_lease_is_unknown(cluster: Cluster) -> None:
    driver, worker = await Driver.on(cluster), await queue_process(cluster)
    await driver.push("a")
    (late,) = await worker.take(timeout=10.0)
    await cluster.clock.sleep(15.0)
    assert await driver.cancel("a") == "a"
    with pytest.raises(UnknownLease):
        await worker.consumer.done([late.id])


@pytest.mark.parametrize("text", ["", "x/0", "00000000000000000000-1/1", "00000000000000000000-1/-1", "a" * 99])
def test_other_text_is_no_place(text: str) -> None:
    assert ItemPlace.parse(text) is None


def test_a_place_is_read_as_it_was_written() -> None:
    place = ItemPlace(str(SegmentName(1000.0, 3, "abcdef", 12)), 11)
    assert ItemPlace.parse(str(place)) == place
