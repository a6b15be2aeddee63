"""Odd objects in a queue's folders: the other items are delivered, and the odd ones are reported and stay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from fray.cluster import StorageCluster
from fray.queue import FileQueue, HttpQueueServer, Queue
from fray_coordinator import fsck
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreRefused
from fray_coordinator.protocol.queue_segments import LARGE_ITEM_BYTES
from fray_coordinator.queue import admin
from fray_coordinator.queue.consumer import Consumer
from fray_coordinator.queue.delivery import EncodedItem
from fray_coordinator.queue.doorbell import QueueDoorbell
from fray_coordinator.queue.held_segment import PoisonIsolation
from fray_coordinator.queue.open_queue import open_queue
from fray_coordinator.store.interface import ANY, Refused
from fray_layouts.queue_keys import QueueKeys, SegmentName
from fray_layouts.queue_records import SegmentHeader, encode_segment
from tests.support.damage import a_queue
from tests.support.queue_processes import NAMES, QueueProcess, queue_process
from tests.support.virtual import Cluster

TWO = encode_segment(SegmentHeader(encoding="json", sizes=[1, 1]), [b"1", b"2"])
SEGMENTS = {
    "three in its name, two in its header": TWO,
    "garbage": b"garbage",
    "nothing": b"",
    "deep": b"[" * 5000 + b"\n",
    "not UTF-8": b'{"encoding":"\xff","sizes":[]}\n',
    "sizes below 0": b'{"encoding":"json","sizes":[3,-1,0]}\nab',
    "an item that is none": b'{"encoding":"json","sizes":[0,0,0],"large":[7]}\n',
    "cut off": encode_segment(SegmentHeader(encoding="json", sizes=[2, 2, 2]), [b"11", b"22", b"33"])[:-1],
}
LEASES: dict[str, bytes] = {
    "garbage": b"garbage",
    "a list": b"[]",
    "text as a time": b'{"timeout": "soon", "owner": "x"}',
    "items that are none": b'{"done": "fffff0"}',
    "all, and items that are none": b'{"done": "fffff"}',
    "no number": b'{"done": "xyz"}',
    "deep": b"[" * 5000,
}


on_files_and_in_buckets = pytest.mark.parametrize("local", [True, pytest.param(False, marks=pytest.mark.slow)])


async def odd_segment(one: QueueProcess, body: bytes) -> str:
    segment = str(SegmentName(one.queue.core.now(), 0, "abcdef", 3))
    await one.queue.core.store.put(NAMES.segment(segment), body, ANY)
    await one.queue.core.clock.sleep(0.01)
    return segment


async def rest(one: QueueProcess) -> list[str]:
    """The items that are delivered, taken one at a time."""
    found: list[str] = []
    while taken := await one.take(1):
        found += [delivery.item.body.decode() for delivery in taken]
        await one.consumer.done([delivery.id for delivery in taken])
    return found


@on_files_and_in_buckets
@pytest.mark.parametrize("body", SEGMENTS.values(), ids=SEGMENTS)
async def test_a_segment_that_is_none_is_set_aside(cluster: Cluster, body: bytes, local: bool) -> None:
    """Once every pop of every consumer raised, and the items claimed with it were stranded."""

    one, two = await queue_process(cluster, local), await queue_process(cluster, local)
    segment = await odd_segment(one, body)
    await one.push(*"abcde", batch=1)
    assert len(await admin.peek_items(one.queue, {}, 9)) == 5, "before anybody met it"
    assert sorted(await one.bodies(3) + await two.bodies(9)) == list("abcde")
    assert (await admin.count_items(one.queue, {})).problems == 1
    assert await admin.peek_items(one.queue, {}, 9) == []
    aside = cluster.contents.objects[NAMES.lease(segment)]
    await cluster.clock.sleep(5000.0)
    assert sorted(await rest(await queue_process(cluster, local))) == list("abcde"), "nobody ended them"
    assert cluster.contents.objects[NAMES.lease(segment)] == aside, "nobody claimed it again"
    assert cluster.contents.objects[NAMES.segment(segment)].data == body, "nothing is deleted on suspicion"


@on_files_and_in_buckets
@pytest.mark.parametrize("lease", LEASES.values(), ids=LEASES)
async def test_a_lease_that_is_none_keeps_nobody_from_the_other_items(
    cluster: Cluster, lease: bytes, local: bool
) -> None:
    one = await queue_process(cluster, local)
    segment = await odd_segment(
        one, encode_segment(SegmentHeader(encoding="json", sizes=[1, 1, 1]), [b"1", b"2", b"3"])
    )
    await one.queue.core.store.put(NAMES.lease(segment), lease, ANY)
    await one.queue.core.store.put(NAMES.lease(f"{segment[:-1]}7"), lease, ANY)  # one without a segment
    await one.push(*"abcde", batch=1)
    found = await rest(one)
    assert sorted(set(found) - set("123")) == list("abcde")
    await cluster.clock.sleep(5000.0)
    two = await queue_process(cluster, local)
    assert await rest(two) == []
    await admin.peek_items(two.queue, {}, 9)
    await admin.purge_items(two.queue)


async def test_a_key_that_is_no_segment_name_is_ignored(cluster: Cluster) -> None:
    one = await queue_process(cluster)
    await one.push("a")
    [key] = cluster.keys(NAMES.segments)
    segment = key.rpartition("/")[2]
    foreign = [
        NAMES.segments,
        NAMES.finished,
        f"{NAMES.segments}{segment[:5]}/",
        f"{NAMES.segments}zzzzz/zz/{segment}",
        f"{key}~lease~lease",
        f"{key}.bak",
        f"{NAMES.finished}x",
        f"{NAMES.finished}zzz/",
        NAMES.doorbell,
    ]
    for name in foreign:
        cluster.contents.set(name, cluster.contents.objects[key])
    cluster.contents.objects[key] = replace(cluster.contents.objects[key], updated=cluster.clock.wall() + 1000.0)
    assert await rest(one) == ["a"]
    await cluster.clock.sleep(5000.0)
    assert await rest(await queue_process(cluster)) == []
    assert set(foreign) <= set(cluster.keys())


async def test_fsck_names_objects_set_aside_and_restores_them_when_they_can_be_read(core: Core) -> None:
    queue = await open_queue(core, await a_queue(core))
    segment = str(SegmentName(core.now(), 0, "abcdef", 2))
    key = queue.keys.segment(segment)
    await core.store.put(key, b"half a cop", ANY)
    consumer = Consumer(queue, QueueDoorbell(queue))
    assert await consumer.take(2, 60.0, PoisonIsolation()) == []
    [trouble] = await fsck.check(core)
    assert trouble.key == key
    assert "does not hold the segment" in trouble.what
    assert "--repair" in trouble.remedy
    await fsck.repair(core)
    assert len(await fsck.check(core)) == 1, "it still cannot be read"
    await core.store.put(key, TWO, ANY)
    await fsck.repair(core)
    assert await fsck.check(core) == []
    await core.clock.sleep(100.0)
    assert [taken.item.body for taken in await consumer.take(2, 60.0, PoisonIsolation())] == [b"1", b"2"]
    await consumer.close()


@pytest.mark.parametrize("kind", ["files", "http"])
def test_other_engines_go_on_too(kind: str, tmp_path: Path) -> None:
    behind: FileQueue[str] = FileQueue(tmp_path / "q", encoding="json")
    behind.push("before")
    odd = tmp_path / "q" / QueueKeys("").segment(str(SegmentName(1e9, 0, "abcdef", 2)))
    odd.parent.mkdir(parents=True)
    odd.write_bytes(b"garbage")
    cluster = StorageCluster(str(tmp_path / "root"))
    with cluster, HttpQueueServer("127.0.0.1", cluster=cluster) as server:
        queue: Queue[str] = server.new_queue("kept", behind) if kind == "http" else behind
        queue.push("after")
        assert [lease.item for lease in queue.pop_many(5)] == ["before", "after"]
        assert queue.counts().problems == 1


class Fails:
    """A connection to the store whose n-th request fails like this."""

    def __init__(self, cluster: Cluster, connection: int, number: int, error: BaseException) -> None:
        self.connection, self.left, self.error = cluster.connections[connection], number, error
        self._pass: Callable[[str, str], Awaitable[None]] = self.connection._pass
        self.connection._pass = self.passed  # type: ignore[method-assign]

    async def passed(self, verb: str, key: str) -> None:
        await self._pass(verb, key)
        self.left -= 1
        if self.left == 0:
            raise self.error


async def a_life(cluster: Cluster, number: int, error: Exception, local: bool) -> bool:
    """A consumer whose n-th request fails, then another one. Returns whether there was such a request."""
    one, two = await queue_process(cluster, local), await queue_process(cluster, local)
    await one.push(*"abcd", batch=2)
    fault = Fails(cluster, -2, number, error)
    done: set[str] = set()

    async def work(worker: QueueProcess, seconds: float) -> None:
        taken = await worker.take(3, timeout=20.0, wait=seconds)
        await worker.consumer.done([delivery.id for delivery in taken[:2]])
        done.update(delivery.item.body.decode() for delivery in taken[:2])
        await worker.consumer.release([delivery.id for delivery in taken[2:]], failed=False)

    for _ in range(8):
        try:
            await work(one, 0.0)
        except (StoreRefused, type(error)):
            continue
    await cluster.clock.sleep(30.0)
    failed, fault.left = fault.left <= 0, 0
    await one.consumer.close()
    while len(done) < 4 and cluster.clock.boottime() < 1e6:
        await work(two, 60.0)
    for _ in range(3):
        await cluster.clock.sleep(200.0)
        assert await two.take(1) == []
    await cluster.clock.sleep(60.0)
    assert cluster.keys(NAMES.segments) == []
    await two.consumer.close()
    return failed


@on_files_and_in_buckets
@pytest.mark.parametrize(
    "error", [Refused("403"), ValueError("a bug"), pytest.param(MemoryError(), marks=pytest.mark.slow)], ids=repr
)
async def test_a_request_that_fails_in_any_way_leaves_all_usable(
    virtual_time: None, error: Exception, local: bool
) -> None:
    number = 1
    while await a_life(Cluster(), number, error, local):
        number += 1
    assert number > 15, "every request of a life failed once"


@pytest.mark.parametrize("local", [True, False])
async def test_a_large_item_that_cannot_be_read_is_told_and_left_alone(cluster: Cluster, local: bool) -> None:
    """Once its segment was claimed and released without end, and nothing else was delivered."""

    one, two = await queue_process(cluster, local), await queue_process(cluster, local)
    await one.push("x" * LARGE_ITEM_BYTES, "a", batch=1)
    for connection in cluster.connections:
        connection.spoilt.append(("get", NAMES.all_large))
    assert await one.bodies() == ["a"]
    with pytest.raises(BadRecord):
        await two.take()
    requests = sum(len(connection.asked) for connection in cluster.connections)
    assert requests < 60


async def test_a_refused_acknowledgement_is_told_and_can_be_repeated(cluster: Cluster) -> None:
    one = await queue_process(cluster)
    await one.push("a")
    (taken,) = await one.take()
    fault = Fails(cluster, 0, 1, Refused("403"))
    with pytest.raises(Exception, match="403"):
        await one.consumer.done([taken.id])
    fault.left = 0
    await one.consumer.done([taken.id])
    assert await one.bodies(wait=200.0) == []


async def test_an_exception_before_a_write_of_the_lease_is_told_and_the_next_write_begins_anew(
    cluster: Cluster,
) -> None:
    """Once every later acknowledgement failed with the same exception for ever."""

    one = await queue_process(cluster)
    await one.push("a", "b", batch=2)
    first, second = await one.take(2)
    await one.consumer.done([first.id])

    async def fails(seconds: float) -> None:
        del one.queue.core.clock.sleep
        raise MemoryError

    one.queue.core.clock.sleep = fails  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        await one.consumer.done([second.id])
    await one.consumer.done([second.id])
    assert await one.bodies(wait=200.0) == []


async def test_a_segment_that_the_storage_refuses_is_told_once_nothing_else_is_to_be_had(cluster: Cluster) -> None:
    one = await queue_process(cluster)
    await one.push(*"abc", batch=1)
    oldest = min(key for key in cluster.keys(NAMES.segments))
    cluster.connections[0].refused.append(("get", oldest))
    assert [await one.bodies(), await one.bodies()] == [["b"], ["c"]]
    with pytest.raises(StoreRefused, match=oldest):
        await one.take()
    assert await one.bodies() == [], "once"


@pytest.mark.parametrize("body", [b"garbage", b"[]", b'{"segments": 1}'])
async def test_odd_names_of_finished_segments_keep_no_late_segment_from_delivery(cluster: Cluster, body: bytes) -> None:
    one = await queue_process(cluster)
    now = one.queue.core.now()
    await one.queue.core.store.put(NAMES.finished_at(now, "a" * 16), body, ANY)
    await one.producer.create(SegmentName(now - 3600.0, 0, "abcdef", 1), [EncodedItem(b"late")])
    assert await one.bodies() == ["late"]
