"""The promises of every queue to its users, on memory and on local files."""

from __future__ import annotations

import asyncio
import math
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fray.queue import AsyncQueue, DeadLetter, FileQueue, Lease, LeaseLost, MemoryQueue, Queue, UnknownLease, engine
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.per_process import PerLoop
from fray_layouts.errors import InvalidInput
from fray_runtime.current_task import thread_environ
from tests.support.waiting import eventually, wait_until


@pytest.fixture(params=["memory", "files"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Queue[Any]]:
    with MemoryQueue() if request.param == "memory" else FileQueue(tmp_path) as opened:
        yield opened


def popped(queue: Queue[Any], timeout: float = 60.0) -> Lease[Any]:
    lease = queue.pop(timeout)
    assert lease is not None
    return lease


def test_first_in_first_out(queue: Queue[Any]) -> None:
    for item in range(5):
        queue.push(item)
    queue.push_many(range(5, 20), batch=4)
    assert queue.peek() == 0
    assert queue.size() == 20
    got = []
    for lease in queue:
        got.append(lease.item)
        queue.done(lease)
    assert got == list(range(20))
    assert queue.pop() is None
    assert queue.peek() is None
    assert (queue.size(), queue.pending()) == (0, 0)


def test_size_counts_free_items_and_pending_counts_leased_ones(queue: Queue[Any]) -> None:
    queue.push_many("abcd", batch=4)
    lease = popped(queue)
    assert (queue.size(), queue.pending()) == (3, 1)
    queue.done(lease)
    assert (queue.size(), queue.pending()) == (3, 0)


def test_a_released_item_comes_back_first_while_others_are_out(queue: Queue[Any]) -> None:
    queue.push_many("abcd", batch=1)
    first, second = popped(queue), popped(queue)
    queue.release(first)
    again = popped(queue)
    assert (again.item, again.delivery) == ("a", 2)
    assert (second.item, second.delivery) == ("b", 1)
    assert popped(queue).item == "c"


def test_an_item_of_a_batch_that_is_released_comes_back_first(queue: Queue[Any]) -> None:
    queue.push_many("abcd", batch=4)
    first, _ = popped(queue), popped(queue)
    queue.release(first)
    assert [lease.item for lease in queue.pop_many(3)] == ["a", "c", "d"]


def test_a_lease_that_runs_out_comes_back_even_when_nothing_else_is_there(queue: Queue[Any]) -> None:
    """The predecessor gave up on an empty queue before it looked for expired leases."""
    queue.push("only")
    lost = popped(queue, timeout=0.05)
    again = queue.pop(wait=200)
    assert again is not None
    assert (again.item, again.delivery) == ("only", 2)
    with pytest.raises(UnknownLease):
        queue.done(lost)
    queue.done(again)


def test_a_stale_holder_can_neither_complete_release_nor_extend(queue: Queue[Any]) -> None:
    """The predecessor searched by item, so that a stale holder completed another's lease."""
    queue.push("x")
    stale = popped(queue, timeout=0.02)
    current = queue.pop(wait=200)
    assert current is not None
    for act in (queue.done, queue.release, lambda lease: queue.extend(lease, 5)):
        with pytest.raises(UnknownLease, match="ran out"):
            act(stale)
    queue.done(current)
    assert queue.pop() is None


def test_a_lease_is_ended_once_and_the_error_says_so(queue: Queue[Any]) -> None:
    queue.push("x")
    lease = popped(queue)
    queue.done(lease)
    for act in (queue.done, queue.release):
        with pytest.raises(ValueError, match="done or released before"):
            act(lease)
    with pytest.raises(UnknownLease, match="not of this queue"):
        queue.done(Lease("y", "made-up", 0.0))


@pytest.mark.parametrize("end", ["done", "release"])
def test_a_lost_lease_keeps_none_of_the_others_from_being_ended(queue: Queue[Any], end: str) -> None:
    queue.push_many(range(6), batch=2)
    leases = queue.pop_many(5)
    queue.done(leases[0])
    with pytest.raises(UnknownLease, match=leases[0].lease_id) as raised:
        getattr(queue, end)(leases)
    assert raised.value.leases == (leases[0].lease_id,)
    assert (queue.size(), queue.pending()) == ({"done": 1, "release": 5}[end], 0)


def test_a_lease_that_is_given_twice_ends_its_own_item_only(queue: Queue[Any]) -> None:
    """Once the bits of a segment's items were added up, so the item behind it counted as done."""
    queue.push_many(range(3), batch=3)
    first = popped(queue)
    queue.done([first, first])
    assert [lease.item for lease in queue.pop_many(3)] == [1, 2]


def test_the_block_of_a_lease_ends_it(queue: Queue[Any]) -> None:
    queue.push("x")
    with pytest.raises(ZeroDivisionError), popped(queue):
        raise ZeroDivisionError
    with popped(queue) as lease:
        assert lease.delivery == 2
    assert (queue.pop(), queue.pending()) == (None, 0)


def test_a_lease_that_was_ended_by_hand_is_not_ended_again_by_its_block(queue: Queue[Any]) -> None:
    queue.push("x")
    with popped(queue) as lease:
        lease.release()
    assert popped(queue).item == "x"


def test_extending_and_keeping(queue: Queue[Any]) -> None:
    queue.push_many("ab", batch=1)
    extended, kept = popped(queue, 4.0), popped(queue, 4.0).keep()
    before = extended.deadline, kept.deadline
    extended.extend(60)
    assert extended.deadline > before[0] + 50
    wait_until(lambda: time.time() > max(before))
    assert queue.pop() is None
    queue.done([extended, kept])


def test_an_item_that_fails_again_and_again_is_a_dead_letter(tmp_path: Path) -> None:
    queues: list[Queue[Any]] = [MemoryQueue(max_deliveries=2), FileQueue(tmp_path, max_deliveries=2)]
    for queue in queues:
        with queue:
            queue.push_many(["bad", "good"], batch=1)
            for _ in range(2):
                queue.release(popped(queue))
            with popped(queue) as lease:
                assert lease.item == "good"
            assert queue.pop() is None
            (letter,) = queue.letters()
            assert (letter.item, letter.reason, letter.deliveries) == ("bad", "given up after 2 deliveries", 2)
            assert queue.redrive() == 1
            assert (queue.letters(), popped(queue).item) == ([], "bad")


def test_a_release_that_is_no_failure_does_not_count(tmp_path: Path) -> None:
    queues: list[Queue[Any]] = [MemoryQueue(max_deliveries=2), FileQueue(tmp_path, max_deliveries=2)]
    for queue in queues:
        with queue:
            queue.push("x")
            for _ in range(5):
                queue.release(popped(queue), failed=False)
            assert popped(queue).delivery == 6


class Unreadable:
    """Can be pickled and cannot be unpickled."""

    def __reduce__(self) -> Any:
        return _fail, ("this object is of no use here",)


def _fail(text: str) -> None:
    raise ImportError(text)


def test_an_item_that_cannot_be_unpickled_is_a_dead_letter_and_the_consumer_lives(queue: Queue[Any]) -> None:
    queue.push_many([1, Unreadable(), 3], batch=3)
    assert [lease.item for lease in queue.pop_many(3)] == [1, 3]
    (letter,) = queue.letters()
    assert isinstance(letter, DeadLetter)
    assert letter.item is None
    assert letter.reason == "it cannot be read: ImportError: this object is of no use here"


def test_a_look_at_an_unreadable_item_is_an_error_and_leaves_it_there(queue: Queue[Any]) -> None:
    queue.push(Unreadable())
    with pytest.raises(engine.Unreadable, match=r"of no use here; .* let pop make it a dead letter"):
        queue.peek()
    assert (queue.size(), queue.letters()) == (1, [])


def test_an_unpicklable_item_is_refused_with_its_index_and_nothing_is_pushed(queue: Queue[Any]) -> None:
    with pytest.raises(InvalidInput, match=r"items\[1\].*cannot be pickled"):
        queue.push_many([1, threading.Lock()])
    assert queue.size() == 0


def test_functions_and_classes_made_here_travel(queue: Queue[Any]) -> None:
    queue.push(lambda x: x + 1)
    assert popped(queue).item(2) == 3


async def test_async_twins(queue: Queue[Any]) -> None:
    aio = queue.aio
    await aio.push("a")
    await aio.push_many("bc", batch=1)
    assert await aio.peek() == "a"
    lease = await aio.pop()
    assert lease is not None
    await aio.extend(lease, 90)
    await aio.release(lease)
    assert (await aio.size(), await aio.pending()) == (3, 0)
    async for lease in aio:
        await aio.done(lease)
    assert await aio.pop() is None
    assert (await aio.letters(), await aio.redrive(), await aio.purge()) == ([], 0, 0)
    waiting = asyncio.create_task(aio.pop(wait=200))
    await asyncio.sleep(0)
    await aio.push("late")
    got = await waiting
    assert got is not None
    assert got.item == "late"
    async with aio:
        pass
    assert await aio.size() == 1, "closing gives back what this process has"


class Threads:
    """Records the threads in which it is encoded."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __reduce__(self) -> Any:
        self.names.append(threading.current_thread().name)
        return Threads, ()


def noting(names: list[str]) -> Iterator[int]:
    names.append(threading.current_thread().name)
    yield 1


async def test_items_are_made_and_encoded_in_the_callers_thread(queue: Queue[Any]) -> None:
    """In the background loop, an item's own code would delay every queue of the process, and could use none."""
    mine, items, made = threading.current_thread().name, Threads(), list[str]()

    queue.push(items)
    queue.push_many(noting(made))
    await queue.aio.push(items)
    await queue.aio.push_many(noting(made))
    assert items.names == made == [mine, mine]


def test_items_may_come_from_another_queue_as_they_are_pushed(queue: Queue[Any]) -> None:
    source: Queue[int] = MemoryQueue()
    source.push_many(range(3))
    with source:  # the items in this process's hands keep from it an item that may have killed another process
        queue.push_many(lease.item for lease in source)
    assert queue.size() == 3


async def test_a_coroutine_ends_a_lease_by_its_block(queue: Queue[Any]) -> None:
    await queue.aio.push("x")
    with pytest.raises(ZeroDivisionError):
        async with await queue.aio.pop() or pytest.fail("nothing there"):
            raise ZeroDivisionError
    async for lease in queue.aio:
        async with lease:
            assert lease.delivery == 2
    with pytest.raises(UnknownLease, match=lease.lease_id):
        async with lease:
            pytest.fail("the item is done")
    assert (queue.size(), queue.pending()) == (0, 0)


async def test_a_coroutine_keeps_a_lease(queue: Queue[Any]) -> None:
    await queue.aio.push("x")
    lease = await queue.aio.pop(4.0) or pytest.fail("nothing there")
    before = lease.deadline
    await queue.aio.keep(lease)
    await eventually(lambda: time.time() > before)
    assert await queue.aio.pop() is None
    await queue.aio.done(lease)


def test_the_async_twin_has_every_method() -> None:
    def methods(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")} - {"aio"}

    assert methods(AsyncQueue) == methods(Queue)


def test_a_lease_that_has_ended_cannot_be_entered(queue: Queue[Any]) -> None:
    queue.push("x")
    with popped(queue) as lease:
        pass
    with pytest.raises(UnknownLease, match=lease.lease_id), lease:
        pytest.fail("the item is done")


class Failing:
    """An engine that cannot give an item back."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def release(self, leases: Sequence[str], failed: bool) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "note"), [(StoreUnavailable("the storage is away"), "the storage is away"), (UnknownLease("1"), "")]
)
def test_the_error_of_a_block_comes_out_though_the_item_cannot_be_given_back(error: Exception, note: str) -> None:
    async def opened() -> Any:
        return Failing(error)

    lease = Lease("x", "1", 0.0, queue=Queue(PerLoop(opened)))
    with pytest.raises(ZeroDivisionError) as raised, lease:
        raise ZeroDivisionError
    notes = getattr(raised.value, "__notes__", [])
    assert len(notes) == bool(note)
    assert all(note in text for text in notes)


def test_a_purge_completes_items_of_all_holders(queue: Queue[Any]) -> None:
    queue.push_many(range(10), batch=3)
    lease = popped(queue)
    assert queue.purge() == 10
    with pytest.raises(UnknownLease):
        queue.done(lease)
    assert queue.pop() is None
    assert (queue.size(), queue.pending()) == (0, 0)


def test_many_threads_share_one_queue(queue: Queue[Any]) -> None:
    queue.push_many(range(300), batch=7)
    done: list[int] = []

    def work() -> None:
        while (lease := queue.pop()) is not None:
            with lease:
                done.append(lease.item)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work) for _ in range(8)]:
            future.result()
    assert sorted(done) == list(range(300))


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (lambda q: q.pop_many(0), "count: 0"),
        (lambda q: q.push_many([1], batch=0), "batch: 0"),
        (lambda q: q.letters(-1), "limit: -1"),
        (lambda q: q.redrive(0), "limit: 0"),
    ],
)
def test_odd_arguments_are_refused(queue: Queue[Any], call: Callable[[Any], Any], remedy: str) -> None:
    with pytest.raises(InvalidInput, match=remedy):
        call(queue)


@pytest.mark.parametrize("odd", [0, -1.5, math.inf, math.nan, "5", None])
def test_odd_times_are_refused_in_both_fronts(queue: Queue[Any], odd: Any) -> None:
    """One endless lease once made the queue unreadable for everybody else."""
    queue.push("x")
    lease = popped(queue)
    calls: list[tuple[str, Callable[[Any], Any]]] = [
        ("lease_timeout", lambda queue: queue.pop(odd)),
        ("lease_timeout", lambda queue: queue.pop_many(1, odd)),
        ("seconds", lambda queue: queue.extend(lease, odd)),
    ]
    for field, call in calls:
        refused = f"{field}: {odd!r} .* number of seconds above 0"
        with pytest.raises(InvalidInput, match=refused):
            call(queue)
        with pytest.raises(InvalidInput, match=refused):
            asyncio.run(call(queue.aio))
    queue.done(lease)


@pytest.mark.parametrize("odd", [-1, math.nan, "5", None])
def test_an_odd_wait_is_refused(queue: Queue[Any], odd: Any) -> None:
    with pytest.raises(InvalidInput, match=f"wait: {odd!r} "):
        queue.pop(wait=odd)


def test_a_memory_queue_stays_where_it_is() -> None:
    with pytest.raises(TypeError, match="FileQueue"):
        pickle.dumps(MemoryQueue())


def test_a_lost_lease_is_an_unknown_one() -> None:
    assert issubclass(LeaseLost, UnknownLease)
    assert issubclass(UnknownLease, ValueError)


def test_in_a_job_that_is_a_thread_a_name_is_one_of_that_jobs_namespace(tmp_path: Path) -> None:
    before = thread_environ.set({"FRAY_NAMESPACE": "team"})
    try:
        queue: Queue[Any] = FileQueue(tmp_path, name="tasks")
    finally:
        thread_environ.reset(before)
    assert repr(pickle.loads(pickle.dumps(queue))) == repr(FileQueue(tmp_path, name="tasks", namespace="team"))
