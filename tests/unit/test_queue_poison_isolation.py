"""Leases that run out, items that are delivered alone, and cancelled callers; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.queue import admin
from fray_coordinator.queue.dead_letters import open_dead_letters
from fray_coordinator.queue.delivery import LeaseLost, UnknownLease
from fray_coordinator.queue.held_segment import PoisonIsolation, isolation_of
from fray_layouts.queue_keys import QueueKeys
from tests.support.queue_engines import KINDS, MOST, World, bodies, push
from tests.support.queue_processes import QueueProcess, queue_process
from tests.support.virtual import Cluster


@KINDS
async def test_an_item_whose_leases_run_out_again_and_again_is_a_dead_letter_and_no_neighbour_is(
    cluster: Cluster, kind: str
) -> None:
    """A consumer behind a server that was killed looks like this. The item was once redelivered for ever."""

    world = World(cluster, kind)
    engine = await world.engine()
    await push(engine, "good", "deadly", "alive", batch=3)
    done, killed = [], 0
    while killed < 10 and (taken := await engine.take(3, 10.0, 30.0, world.process(f"client {killed}"))):
        for one in taken:
            if one.item.body == b"deadly":
                killed += 1
                break
            await engine.done([one.id])
            done.append(one.item.body.decode())
    assert sorted(done) == ["alive", "good"]
    (letter,) = await engine.letters(5)
    assert letter.item.body == b"deadly"
    assert killed == 1 + MOST, "nobody knows who it was the first time"
    assert (await engine.counts()).available == (await engine.counts()).pending == 0


@KINDS
async def test_while_one_process_has_a_suspect_others_go_on(cluster: Cluster, kind: str) -> None:
    """Once a server used its own gate for all of its clients."""

    world = World(cluster, kind)
    engine, other = await world.engine(), await world.engine()
    await push(engine, "a", "b", "c")
    await push(other, "x")
    one, two = world.process("one"), world.process("two")
    assert bodies(await engine.take(1, 10.0, 0.0, one)) == ["a"]
    await cluster.clock.sleep(11.0)
    assert bodies(await engine.take(3, 600.0, 30.0, one)) == ["a"]
    assert await engine.take(1, 600.0, 0.0, one) == [], "it is alone"
    assert await other.take(1, 600.0, 0.0, one) == [], "in its process, not in its queue"
    assert bodies(await engine.take(3, 600.0, 0.0, two)) == ["b", "c"]
    assert bodies(await other.take(1, 600.0, 0.0, two)) == ["x"]


@KINDS
async def test_a_suspect_waits_for_items_of_other_queues_until_their_leases_run_out(
    cluster: Cluster, kind: str
) -> None:
    """Once a forgotten lease kept all other items from its process until its own queue was asked."""

    world = World(cluster, kind)
    engine, other = await world.engine(), await world.engine()
    await push(engine, "a")
    await push(other, "forgotten")
    await engine.take(1, 5.0, 0.0, world.process("killed"))
    assert bodies(await other.take(1, 30.0, 0.0, me := world.process("me"))) == ["forgotten"]
    assert await engine.take(1, 60.0, 20.0, me) == []
    assert bodies(await engine.take(1, 60.0, 20.0, me)) == ["a"]


@KINDS
async def test_no_lease_is_ever_called_like_another(cluster: Cluster, kind: str) -> None:
    """Once a stale holder completed another's item, after a server's restart or in another queue."""

    world = World(cluster, kind)
    engines = [await world.engine() for _ in range(2)]
    for engine in engines:
        await push(engine, "a", "b", batch=2)
    seen: set[str] = set()
    for failed in (False, True, False):
        for engine in engines:
            taken = await engine.take(2, 60.0, 0.0, world.process("me"))
            seen.update(one.id for one in taken)
            await engine.release([taken[0].id], failed)
            (again,) = await engine.take(1, 60.0, 0.0, world.process("me"))
            seen.add(again.id)
            with pytest.raises(UnknownLease):
                await engine.done([taken[0].id])
            await engine.release([again.id, taken[1].id], False)
    assert len(seen) == 3 * 2 * 3


@KINDS
async def test_a_process_in_whose_hands_nothing_is_leaves_no_trace(cluster: Cluster, kind: str) -> None:
    world = World(cluster, kind)
    engine = await world.engine()
    await push(engine, "a", "b", batch=1)
    (one, two), me = await engine.take(2, 60.0, 0.0, world.process("me")), world.process("me")
    assert not isolation_of(me).admits(True)
    await engine.done([one.id])
    await engine.release([two.id], False)
    assert isolation_of(me).admits(True)


# --- writes under way while a lease runs out


async def suspect(cluster: Cluster, one: QueueProcess, body: str) -> None:
    """Push an item and let a process take it and die."""
    killed = await queue_process(cluster)
    await one.push(body)
    await killed.take(timeout=5.0)
    await cluster.clock.sleep(10.0)


async def other_queue(cluster: Cluster, one: QueueProcess) -> QueueProcess:
    """Another queue of the same process."""
    other = await queue_process(cluster, keys=QueueKeys("other/"))
    other.isolation = one.isolation
    return other


async def test_a_suspect_is_alone_though_its_lease_runs_out_while_its_start_is_counted(cluster: Cluster) -> None:
    """Once another thread got an item meanwhile, and then the write landed and renewed the lease."""
    one = await queue_process(cluster)
    other = await other_queue(cluster, one)
    await suspect(cluster, one, "suspect")
    await other.push("other")
    writes, counting = ("put", one.queue.keys.segments), asyncio.Event()

    async def slow() -> None:
        counting.set()
        await cluster.clock.sleep(6.0)

    async def claimed() -> None:
        cluster.connections[0].before[writes] = slow

    cluster.connections[0].before[writes] = claimed
    taking = asyncio.create_task(one.bodies(timeout=5.0))
    await counting.wait()
    await cluster.clock.sleep(5.0)
    (held,) = one.consumer.held.values()
    assert held.lease.expired
    assert await other.bodies() == []
    assert await taking == ["suspect"]


@pytest.mark.parametrize("end", ["extend", "done"])
async def test_a_lease_that_ran_out_before_a_suspect_was_handed_out_is_not_revived(cluster: Cluster, end: str) -> None:
    """Once any later write under the lease brought its items back beside the suspect."""
    one = await queue_process(cluster)
    other = await other_queue(cluster, one)
    await other.push("first", "late", batch=2)
    first, late = await other.take(2, timeout=5.0)
    await suspect(cluster, one, "suspect")
    assert await one.bodies() == ["suspect"]
    consumer = other.consumer
    write: Awaitable[object] = consumer.done([first.id]) if end == "done" else consumer.extend(late.id, 60.0)
    with pytest.raises(LeaseLost):
        await write
    assert await other.bodies() == [], "the suspect is alone"


@pytest.mark.parametrize("batch", [1, 2], ids=["by a receipt", "in the lease"])
async def test_an_item_whose_end_cannot_be_written_is_in_nobodys_way(cluster: Cluster, batch: int) -> None:
    """Once it counted again after the failure, beside a suspect that was handed out meanwhile."""
    one = await queue_process(cluster)
    other = await other_queue(cluster, one)
    await suspect(cluster, one, "suspect")
    await other.push("a", "b", batch=batch)
    leases = [delivery.id for delivery in await other.take(2)]
    assert await one.bodies() == []
    place = other.queue.keys.receipts if batch == 1 else other.queue.keys.segments
    cluster.connections[1].unanswered.append(("put", place))
    with pytest.raises(StoreUnavailable):
        await other.consumer.done(leases)
    assert await one.bodies() == ["suspect"]
    cluster.connections[1].unanswered.clear()
    await other.consumer.done(leases)


# --- cancelled callers


async def test_a_done_whose_caller_was_cancelled_leaves_nothing_out(cluster: Cluster) -> None:
    one = await queue_process(cluster)
    await one.push("a", "b", batch=2)
    first, second = await one.take(2, timeout=3.0)
    await one.consumer.done([first.id])
    ending = asyncio.create_task(one.consumer.done([second.id]))
    await cluster.clock.sleep(0.1)
    ending.cancel()
    await asyncio.wait([ending])
    assert ending.cancelled()
    await cluster.clock.sleep(5.0)
    assert one.consumer.held == {}
    assert one.isolation.admits(True)
    assert (await admin.count_items(one.queue, one.consumer.held)).pending == 0
    assert await one.bodies() == []


async def cancelled(cluster: Cluster, one: QueueProcess, after: float) -> None:
    """A take that is cancelled while it waits for the storage."""
    taking = asyncio.create_task(one.take())
    await cluster.clock.sleep(after)
    taking.cancel()
    await asyncio.wait([taking])
    assert taking.cancelled()


async def test_a_consumer_that_is_cancelled_during_a_take_gives_the_items_back(cluster: Cluster) -> None:
    one, two = await queue_process(cluster), await queue_process(cluster)
    await one.push("a")

    async def stall() -> None:
        await cluster.clock.sleep(5.0)

    cluster.connections[0].before["get", one.queue.keys.segments] = stall
    await cancelled(cluster, one, 1.0)  # the segment is claimed, and being read
    assert await two.bodies(wait=20.0) == ["a"]
    assert one.isolation.admits(True)


async def test_a_start_that_was_marked_for_nobody_does_not_count(cluster: Cluster) -> None:
    one, two = await queue_process(cluster), await queue_process(cluster)
    await one.push("a", "b", batch=2)
    await one.take(timeout=5.0)
    await cluster.clock.sleep(10.0)
    connection, lease = cluster.connections[1], ("put", two.queue.keys.segments)

    async def slow() -> None:
        connection.before[lease] = slow
        await cluster.clock.sleep(1.0)

    for _ in range(MOST + 1):
        connection.before[lease] = slow
        await cancelled(cluster, two, 1.5)  # the first write takes the segment, the second marks the start
        await cluster.clock.sleep(10.0)
    del connection.before[lease]
    (suspect,) = await two.take()
    assert all(held.lease.record.suspect for held in two.consumer.held.values())
    assert suspect.item.body == b"a"
    assert await admin.peek_items(await open_dead_letters(two.queue), {}, 5) == []


class Suspect:
    """An item that must be alone in its process while it is out."""

    suspect = True

    def is_over(self) -> bool:
        return False

    def end_claim(self) -> None:
        raise AssertionError("its lease did not run out")


def test_one_gates_suspects_do_not_affect_another_gate() -> None:
    isolation, item = PoisonIsolation(), Suspect()
    isolation.enter(item)
    assert not isolation.admits(False)
    assert PoisonIsolation().admits(True)
    isolation.leave(item)
    assert isolation.admits(True)
