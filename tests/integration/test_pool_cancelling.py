"""Tasks of pools with a queue that are cancelled while they wait: as with any executor, and for every driver."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from fray.cluster import StorageCluster
from fray.futures import GeneratorFuture
from fray.pool import WorkerPool, queue_transport
from fray.pool.queue_transport import QueueTransport, plan_batches
from fray.types import ResourceConfig
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.queue.cancelling import ItemCanceller
from tests.support.waiting import eventually

CLUSTER = "threads"
SMALL = ResourceConfig(cpu=0.1)


class Work:
    """Tasks of one test, whose workers are threads here. The first one occupies the only worker until `go`."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.begun, self.go = threading.Event(), threading.Event()

    def occupy(self) -> str:
        self.begun.set()
        self.go.wait(200)
        return "occupied"

    def run(self, number: int) -> int:
        self.ran.append(number)
        return number


works: dict[str, Work] = {}


def occupy(name: str) -> str:
    return works[name].occupy()


def run(name: str, number: int) -> int:
    return works[name].run(number)


@pytest.fixture
def work(request: pytest.FixtureRequest) -> Iterator[tuple[str, Work]]:
    name = request.node.name.replace("[", "-").strip("]")[-40:].replace("_", "-").strip("-")
    works[name] = Work()
    yield name, works[name]
    works[name].go.set()


@pytest.fixture
def pool(cluster: StorageCluster, work: tuple[str, Work]) -> Iterator[WorkerPool]:
    """A pool whose only worker is occupied."""
    name, done = work
    with WorkerPool(cluster, 1, SMALL, transport="queue", name=name) as opened:
        opened.submit(occupy, name)
        assert done.begun.wait(200)
        yield opened
        done.go.set()


def test_a_task_goes_on_if_no_thread_can_be_started_to_cancel_it(
    pool: WorkerPool, work: tuple[str, Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, done = work
    waiting = pool.submit(run, name, 1)

    def refused(*given: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(queue_transport, "start_thread", refused)
        assert [waiting.cancel(), waiting.cancel()] == [False, False], "and nobody waits for ever"
    assert waiting.cancel()
    done.go.set()
    assert done.ran == []


def test_cancelled_tasks_never_run_and_the_others_of_their_batches_do(pool: WorkerPool, work: tuple[str, Work]) -> None:
    name, done = work
    assert next(plan_batches(300, 1))[1] > 1, "several tasks share an object"
    futures = pool.map(lambda number: run(name, number), range(300))
    chosen = [*range(0, 300, 97), 299]
    assert [futures[number].cancel() for number in chosen] == [True] * len(chosen)
    assert futures[0].cancel(), "it stays cancelled"
    ended = concurrent.futures.wait([futures[number] for number in chosen], 0)
    assert (len(ended.done), len(ended.not_done)) == (len(chosen), 0)
    assert {future.cancelled() for future in concurrent.futures.as_completed(ended.done, 0)} == {True}
    with pytest.raises(CancelledError):
        futures[299].result(0)
    done.go.set()
    others = [number for number in range(300) if number not in chosen]
    assert [futures[number].result(200) for number in others] == others
    assert sorted(done.ran) == others
    assert len(list(pool.as_completed(futures, 0))) == 300


def test_a_task_that_a_worker_has_is_not_cancelled(cluster: StorageCluster, work: tuple[str, Work]) -> None:
    name, done = work
    with WorkerPool(cluster, 1, SMALL, transport="queue", name=name) as pool:
        running = pool.submit(occupy, name)
        assert done.begun.wait(200)
        assert not running.cancel()
        assert not running.cancelled()
        done.go.set()
        assert running.result(200) == "occupied"


def test_every_driver_knows_of_a_cancelled_task_and_can_cancel_those_of_others(
    cluster: StorageCluster, pool: WorkerPool, work: tuple[str, Work]
) -> None:
    name, done = work
    tasks = pool.map_as(lambda number: run(name, number), {str(number): number for number in range(4)})
    assert tasks[1].cancel()
    other = WorkerPool.attach(name, cluster, (0, 1), SMALL)
    assert other.futures["1"].cancelled()
    assert other.futures["2"].cancel()
    with pytest.raises(CancelledError):
        tasks[2].result(200)
    done.go.set()
    assert [other.futures[key].result(200) for key in "03"] == [0, 3]
    assert sorted(done.ran) == [0, 3]
    assert pool.submit_as("1", run, name, 7) is tasks[1], "each key is submitted once"
    again = pool.map_as(lambda number: run(name, number), {"0": 0, "1": 1}, retry_failed=True)
    assert [future.result(200) for future in again] == [0, 1]


async def test_waiting_tasks_are_cancelled_with_the_coroutine_that_awaits_them_which_does_not_wait_for_that(
    pool: WorkerPool, work: tuple[str, Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, done = work
    tasks = pool.map(lambda number: run(name, number), range(40))
    answering, cancel = threading.Event(), ItemCanceller.cancel

    async def slow(*given: Any) -> Any:
        await eventually(answering.is_set, 30)
        return await cancel(*given)

    monkeypatch.setattr(ItemCanceller, "cancel", slow)

    async def total() -> int:
        return sum(await asyncio.gather(*tasks[:30]))

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(total(), 0.01)
    assert not any(task.done() for task in tasks)
    answering.set()
    assert concurrent.futures.wait(tasks[:30], 200).not_done == set()
    assert {task.cancelled() for task in tasks[:30]} == {True}
    done.go.set()
    assert await asyncio.gather(*tasks[30:]) == list(range(30, 40))
    assert sorted(done.ran) == list(range(30, 40))


def test_a_callback_may_cancel_other_tasks(pool: WorkerPool, work: tuple[str, Work]) -> None:
    name, _ = work
    tasks = [pool.submit(run, name, number) for number in range(6)]
    answers: queue.SimpleQueue[list[bool]] = queue.SimpleQueue()

    def cancel_the_others(ended: Future[int]) -> None:
        answers.put([task.cancel() for task in tasks[1:]])

    tasks[0].add_done_callback(cancel_the_others)
    assert tasks[0].cancel()
    assert answers.get(timeout=200) == [True] * 5
    assert all(task.cancelled() for task in tasks)


def test_several_threads_cancel_at_once(pool: WorkerPool, work: tuple[str, Work]) -> None:
    name, _ = work
    tasks = pool.map(lambda number: run(name, number), range(80))
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        assert list(threads.map(lambda task: task.cancel(), [*tasks, *tasks])) == [True] * 160


def test_a_cancelled_generator_ends(pool: WorkerPool, work: tuple[str, Work]) -> None:
    def numbers() -> Iterator[int]:
        yield 1

    task = pool.submit(numbers)
    assert isinstance(task, GeneratorFuture)
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next, task)
        assert task.cancel()
        with pytest.raises(CancelledError):
            waiting.result(200)


def test_what_the_storage_does_not_answer_is_not_cancelled(
    pool: WorkerPool, work: tuple[str, Work], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name, done = work
    task = pool.submit(run, name, 1)

    async def away(*given: object) -> None:
        raise StoreUnavailable("the storage is away")

    with monkeypatch.context() as patched:
        patched.setattr(ItemCanceller, "_claimed", away)
        assert not task.cancel()
    assert "were not cancelled" in caplog.text
    done.go.set()
    assert task.result(200) == 1


def test_a_submission_says_where_each_task_waits(pool: WorkerPool, work: tuple[str, Work]) -> None:
    name, _ = work
    tasks = pool.map_as(lambda number: run(name, number), {str(number): number for number in range(3)})
    transport = pool._transport
    assert isinstance(transport, QueueTransport)
    assert len({transport._table.place_of(key) for key in "012"} - {None}) == 3
    assert [task.cancel() for task in tasks] == [True] * 3
    assert [transport._table.place_of(key) for key in "012"] == [None] * 3
