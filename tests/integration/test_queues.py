"""Queues in storage, with real processes and real servers."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fray import sync
from fray.queue import FileQueue, Lease, UnknownLease
from fray_coordinator.actors import naming
from fray_coordinator.errors import RootMismatch
from fray_coordinator.queue.delivery import QueueNotFound
from fray_coordinator.store.metering import RequestCounts
from fray_layouts.errors import InvalidInput
from fray_layouts.queue_keys import QueueKeys
from fray_layouts.queue_records import decode_segment
from tests.support import queues, servers
from tests.support.agents import on_cluster
from tests.support.servers import Server

SERVERS: dict[str, Callable[[], AbstractContextManager[Server]]] = {
    "gcs-emulator": servers.gcs_emulator,
    "moto": servers.moto,
    "seaweed": servers.seaweed,
}

FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module", params=["gcs-emulator", "moto", pytest.param("seaweed", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with SERVERS[request.param]() as running:
        yield running


@pytest.fixture
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"{server.root}/{uuid.uuid4()}"


def usage(queue: FileQueue[Any]) -> RequestCounts:
    async def read() -> RequestCounts:
        engine: Any = await queue._engine.get()
        return engine.queue.core.store.usage.snapshot()  # type: ignore[no-any-return]

    return sync.run(read())


def popped(queue: FileQueue[Any], timeout: float = 60.0) -> Lease[Any]:
    lease = queue.pop(timeout)
    assert lease is not None
    return lease


# --- buckets


def test_a_bucket_carries_a_queue(bucket: str) -> None:
    with FileQueue[Any](bucket) as here, pickle.loads(pickle.dumps(FileQueue(bucket))) as there:
        here.push_many(range(20), batch=6)
        here.push(b"x" * 100_000)
        assert (here.size(), here.peek()) == (21, 0)
        mine, theirs = popped(here), popped(there)
        assert mine.item == 0
        assert theirs.item // 6 in (1, 2), "the order is kept up to what is in flight"
        here.release(mine)
        assert popped(there).item == theirs.item + 1
        there.done(theirs)
        with pytest.raises(UnknownLease):
            there.done(theirs)
        assert popped(here).item == 0
        assert there.pending() + there.size() == 20
    with FileQueue[Any](bucket) as late:
        items = []
        while leases := late.pop_many(25):
            items += [lease.item for lease in leases]
            late.done(leases)
        assert len(items) == 20
        assert b"x" * 100_000 in items


def test_items_stored_together_cost_at_most_20_writes_and_lists_a_thousand(bucket: str) -> None:
    with FileQueue[int](bucket) as queue:
        queue.push(-1)
        queue.done(popped(queue))
        before, began = usage(queue), time.monotonic()
        queue.push_many(range(1000), batch=250)
        done = 0
        while leases := queue.pop_many(250):
            queue.done(leases)
            done += len(leases)
        spent = usage(queue) - before
    assert done == 1000
    segments, later = 4, int(time.monotonic() - began)
    assert spent.writes <= 3 * segments + 2 + later, "a segment, its lease, its acknowledgement; and the bell"
    assert spent.writes + spent.lists <= 20 + 2 * later, "and on a busy machine what is done once a second"
    assert spent.reads <= segments + 4 + later, "each segment; and the bell"


def test_an_item_alone_costs_a_consumer_that_runs_behind_two_requests(bucket: str) -> None:
    """They are its claim and the read of the item. Listings, rings and acknowledgements are shared by many items."""
    items = 25
    with FileQueue[int](bucket) as queue:
        queue.size()
        before, began = usage(queue), time.monotonic()
        for item in range(items):
            queue.push(item)
        rings = time.monotonic() - began + 2
        pushed, began = usage(queue) - before, time.monotonic()
        for item in range(items):
            lease = popped(queue)
            assert lease.item == item
            queue.done(lease)
        queue.counts()  # writes the noted acknowledgements
        receipts = int(time.monotonic() - began) + 2
        spent = usage(queue) - before - pushed
    assert items <= pushed.writes <= items + rings
    assert (pushed.reads, pushed.lists) == (0, 0)
    assert spent.lists <= 2 + receipts, "looks for more, what is left in the queue, and receipts"
    assert items <= spent.writes <= items + receipts, "a claim each; and receipts, one a second"
    assert items <= spent.reads <= items + 1 + receipts, "its segment; and the bell"


def test_an_empty_queue_is_polled_by_conditional_reads(bucket: str) -> None:
    with FileQueue[int](bucket) as queue:
        assert queue.pop() is None
        before = usage(queue)
        assert [queue.pop() for _ in range(10)] == [None] * 10
        assert usage(queue) - before == RequestCounts(reads=10)


# --- local files


def test_a_name_in_a_cluster(tmp_path: Path) -> None:
    with FileQueue[str](tmp_path, name="work", namespace="team") as queue:
        queue.push("here")
    with FileQueue[str](tmp_path, name="work", namespace="team") as again:
        assert popped(again).item == "here"
    assert (tmp_path / "queues/team/work~1/queue.json").exists()
    with FileQueue[str](tmp_path, name="work", namespace="other") as other:
        assert other.pop() is None
    with pytest.raises(RootMismatch, match="give the queue a name in it"):
        FileQueue(tmp_path).size()


def test_a_lookup_of_one_incarnation_never_returns_the_next(tmp_path: Path) -> None:
    def incarnation(number: int) -> FileQueue[str]:
        return FileQueue[str](tmp_path, name="work", namespace="team", incarnation=number)

    with pytest.raises(QueueNotFound), incarnation(1) as queue:
        queue.push("nobody has made it")
    with FileQueue[str](tmp_path, name="work", namespace="team") as queue:
        queue.push("first")
    with incarnation(1) as queue, pickle.loads(pickle.dumps(queue)) as other:
        assert other.peek() == "first"
    on_cluster(tmp_path, lambda core: naming.free_name(core, "team", "queue", "work", 1))
    with FileQueue[str](tmp_path, name="work", namespace="team") as queue:
        queue.push("second")
    with pytest.raises(QueueNotFound), incarnation(1) as queue:
        queue.pop()
    with incarnation(2) as queue:
        assert queue.peek() == "second"


def test_a_queue_without_a_name_keeps_its_root(tmp_path: Path) -> None:
    """Once the opening of a queue with a name there made it a cluster's root, and nobody could reach the items."""
    with FileQueue[str](tmp_path) as queue:
        queue.push("precious")
        before = sorted(os.listdir(tmp_path))
        with pytest.raises(RootMismatch, match="holds a queue without a name"):
            FileQueue[str](tmp_path, name="work").push("x")
        assert sorted(os.listdir(tmp_path)) == before
    with FileQueue[str](tmp_path) as again:
        assert popped(again).item == "precious"


@pytest.mark.parametrize("name", ["a/b", "a.b", "..", "", "a~1", "x" * 65])
def test_a_name_that_cannot_be(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="no slashes and no dots"):
        FileQueue(tmp_path, name=name)


def test_arguments_that_a_queue_cannot_honour_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="fs_args"):
        FileQueue(tmp_path, {"token": "x"})
    with pytest.raises(InvalidInput, match="encoding"):
        FileQueue(tmp_path, encoding="xml")


def test_a_queue_of_another_layout_version(tmp_path: Path) -> None:
    with FileQueue[int](tmp_path) as queue:
        queue.push(1)
    settings = json.loads((tmp_path / "queue.json").read_text())
    (tmp_path / "queue.json").write_text(json.dumps({**settings, "layout": 9}))
    with pytest.raises(RootMismatch, match="layout version 9, this Fray uses 1"):
        FileQueue[int](tmp_path).pop()
    (tmp_path / "queue.json").write_text("[]")
    with pytest.raises(RootMismatch, match="is not a queue"):
        FileQueue[int](tmp_path).pop()


def test_json_items_are_there_for_other_languages(tmp_path: Path) -> None:
    with FileQueue[Any](tmp_path, encoding="json") as queue:
        queue.push_many([{"id": 1}, [2]], batch=2)
        with pytest.raises(InvalidInput, match="cannot be written as JSON"):
            queue.push(lambda: None)
    (segment,) = [path for path in (tmp_path / "segments").rglob("*-2") if path.is_file()]
    header, items = decode_segment(segment.read_bytes())
    assert (header.encoding, [msgspec.json.decode(item) for item in items]) == ("json", [{"id": 1}, [2]])
    with FileQueue[Any](tmp_path) as queue:
        assert popped(queue).item == {"id": 1}


def test_large_items_are_objects_of_their_own(tmp_path: Path) -> None:
    large = [os.urandom(100_000), b"small", os.urandom(70_000)]
    with FileQueue[bytes](tmp_path, max_deliveries=1) as queue:
        queue.push_many(large, batch=3)
        assert len([path for path in (tmp_path / "large").rglob("*") if path.is_file()]) == 2
        leases = queue.pop_many(3)
        assert [lease.item for lease in leases] == large
        queue.release(leases[0])
        queue.done(leases[1:])
        assert queue.pop() is None
        assert [letter.item for letter in queue.letters()] == large[:1]


def test_a_fork_has_a_hold_of_its_own(tmp_path: Path) -> None:
    with FileQueue[int](tmp_path) as queue:
        queue.push_many(range(3), batch=1)
        mine = popped(queue)
        child = FORK.Process(target=_consume_one, args=(queue,))
        child.start()
        child.join(200)
        assert child.exitcode == 0
        queue.done(mine)
        assert queue.pop() is not None
        assert (queue.pop(), queue.pending()) == (None, 1)


def _consume_one(queue: FileQueue[int]) -> None:
    lease = popped(queue)
    assert lease.item in (1, 2), "0 is the parent's"
    queue.done(lease)
    queue.close()


# --- consumers that come and go


@pytest.mark.slow
def test_fifty_consumers_complete_each_item_once(tmp_path: Path) -> None:
    items = 2000
    consumers = [queues.start(str(tmp_path), 0.5, threads) for threads in (13, 13, 12, 12)]
    with FileQueue[int](tmp_path) as queue:
        queue.push_many(range(items), batch=10)
    for consumer in consumers:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == "ready\n"
    for consumer in consumers:
        assert consumer.stdin is not None
        consumer.stdin.write("go\n")
        consumer.stdin.flush()
    told = [json.loads(consumer.communicate(timeout=200)[0]) for consumer in consumers]
    assert sum(map(bool, told)) > 1, "one process did it all before the others began"
    assert Counter(item for done in told for item in done) == Counter(range(items))


def test_a_killed_consumers_held_items_come_back_and_its_finished_ones_do_not(tmp_path: Path) -> None:
    with FileQueue[int](tmp_path) as queue:
        queue.push_many(range(6), batch=3)
        started = FORK.Queue()
        child = FORK.Process(target=_die_with_an_item, args=(str(tmp_path), started))
        child.start()
        assert started.get(timeout=200) == [0, 1]
        child.join(200)
        assert child.exitcode == -signal.SIGKILL
        got: Counter[int] = Counter()
        while len(got) < 5:
            with queue.pop(wait=200) or pytest.fail("nothing comes back") as lease:
                got[lease.item] += 1
        assert got == Counter([1, 2, 3, 4, 5])


def _die_with_an_item(root: str, started: Any) -> None:
    queue: FileQueue[int] = FileQueue(root)
    first, second = popped(queue, 3.0), popped(queue, 3.0)
    queue.done(first)
    started.put([first.item, second.item])
    started.close()
    started.join_thread()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_an_item_that_kills_its_consumers_is_a_dead_letter_and_its_neighbours_are_done(tmp_path: Path) -> None:
    with FileQueue[str](tmp_path, max_deliveries=2) as queue:
        queue.push_many(["harmless", "deadly", "alive"], batch=3)
    for _ in range(8):
        child = FORK.Process(target=_consume_deadly, args=(str(tmp_path),))
        child.start()
        child.join(200)
        if child.exitcode == 0:
            break
    with FileQueue[str](tmp_path) as queue:
        assert [letter.item for letter in queue.letters()] == ["deadly"]
        assert (queue.size(), queue.pending()) == (0, 0)


def _consume_deadly(root: str) -> None:
    queue: FileQueue[str] = FileQueue(root)
    while queue.size() + queue.pending():
        leases = queue.pop_many(3, 5.0, wait=0.5)
        if any(lease.item == "deadly" for lease in leases):
            os.kill(os.getpid(), signal.SIGKILL)
        queue.done(leases)
    queue.close()


def test_names_are_those_of_the_contract(tmp_path: Path) -> None:
    with FileQueue[int](tmp_path) as queue:
        queue.push(1)
        popped(queue)
        keys = sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "segments").rglob("*") if path.is_file())
    parsed = [QueueKeys().parse(key) for key in keys]
    assert parsed[0] is not None
    assert parsed == [(parsed[0][0], False), (parsed[0][0], True)]
    assert keys == [QueueKeys().segment(parsed[0][0]), QueueKeys().lease(parsed[0][0])]
