"""Programs on an event loop, such as servers and notebooks: no call that can be awaited blocks it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION

import pytest

from fray import sync
from fray.actor import ActorHandle
from fray.client import JobFailed, JobHandle, StorageClient, wait_all_async
from fray.cluster import ClusterResolver, StorageCluster
from fray.job import ThreadContext
from fray.pool import WorkerPool
from fray.types import ActorConfig, Entrypoint, JobId, JobRequest, JobStatus
from fray_coordinator.errors import JobNotFound
from tests.support.waiting import eventually

CLUSTER = "threads"

gate = threading.Event()


class Doorman:
    def __init__(self) -> None:
        self.let_in = 0

    def enter(self, number: int) -> int:
        gate.wait(200)
        self.let_in += 1
        return number

    def refuse(self) -> None:
        raise LookupError("not on the list")

    def queue(self, length: int) -> Iterator[int]:
        for number in range(length):
            yield number
            gate.wait(200)

    def count(self) -> int:
        return self.let_in


def wait_at_gate(number: int) -> int:
    gate.wait(200)
    return number


@pytest.fixture(autouse=True)
def closed_gate() -> Iterator[None]:
    gate.clear()
    yield
    gate.set()


@pytest.fixture(scope="module")
def client(cluster: StorageCluster) -> StorageClient:
    return StorageClient(cluster)


@pytest.fixture(scope="module")
def doorman(client: StorageClient) -> ActorHandle[Doorman]:
    return client.create_actor(Doorman, name="doorman", actor_config=ActorConfig(max_concurrency=8))


def test_futures_of_calls_are_standard_ones(doorman: ActorHandle[Doorman]) -> None:
    entering, refused = doorman.enter.remote(1), doorman.refuse.remote()
    waiting = [entering, refused]
    assert concurrent.futures.wait(waiting, 200, FIRST_EXCEPTION).done == {refused}
    assert concurrent.futures.wait([entering], 0).not_done == {entering}
    assert not entering.cancel()
    assert not entering.cancelled()
    assert entering.running()
    told: queue.Queue[int] = queue.Queue()
    entering.add_done_callback(lambda future: told.put(future.result()))
    gate.set()
    assert next(concurrent.futures.as_completed([entering], 200)) is entering
    assert list(concurrent.futures.as_completed(waiting, 200))
    assert told.get(timeout=200) == entering.result() == 1
    assert told.empty()
    assert entering.exception(200) is None
    assert isinstance(refused.exception(200), LookupError)


async def test_calls_are_awaited(doorman: ActorHandle[Doorman]) -> None:
    calls = [doorman.enter.remote(number) for number in range(3)]
    late = asyncio.gather(*calls)
    with pytest.raises(LookupError, match="not on the list"):
        await doorman.refuse.remote()
    assert await asyncio.wrap_future(doorman.count.remote()) == doorman.count()
    gate.set()
    assert await late == [0, 1, 2]
    assert await calls[0] == 0


async def test_a_cancelled_wait_does_not_cancel_the_call(doorman: ActorHandle[Doorman]) -> None:
    before, call = doorman.count(), doorman.enter.remote(7)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call, 0.01)
    gate.set()
    assert await call == 7
    assert doorman.count() == before + 1


async def test_tasks_are_awaited_and_come_as_they_are_done(cluster: StorageCluster) -> None:
    async with WorkerPool(cluster, 2) as pool:
        await pool.wait_for_workers_async(timeout=200)
        slow = pool.submit(wait_at_gate, 1)
        quick = await pool.submit(len, "ab")
        assert quick == 2
        found = []
        async for done in pool.as_completed([slow, pool.submit(len, "abc")]):
            found.append(await done)
            gate.set()
        assert found == [3, 1]
        gate.clear()
        with pytest.raises(TimeoutError, match=r"1 of 1 tasks have not ended after .*: 3 of 4 tasks done"):
            async for _ in pool.as_completed([pool.submit(wait_at_gate, 3)], timeout=0.01, progress="three"):
                pass
        gate.set()


async def test_an_unsent_task_is_cancelled_with_the_coroutine_that_awaits_it(cluster: StorageCluster) -> None:
    with WorkerPool(cluster, 1) as pool:
        running, unsent = pool.submit(wait_at_gate, 1), pool.submit(wait_at_gate, 2)
        await eventually(running.running)
        for task in (running, unsent):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(task, 0.01)
        assert unsent.cancelled()
        gate.set()
        assert await running == 1


async def test_the_values_of_a_generator_are_iterated_over() -> None:
    def numbers() -> Iterator[int]:
        yield 1
        gate.wait(200)
        yield 2
        raise LookupError("no third one")

    with ThreadContext() as context:
        future = context.run(numbers)
        assert await anext(future) == 1
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(future), 0.01)
        gate.set()
        assert await anext(future) == 2
        with pytest.raises(LookupError, match="no third one"):
            await anext(future)


def begun(entrypoint: Callable[..., object], *args: object) -> JobRequest:
    return JobRequest("begun", Entrypoint.from_callable(entrypoint, args))


def refuse(who: str) -> None:
    raise LookupError(f"{who} is not on the list")


def announce(name: str) -> None:
    print("enter", name)
    gate.wait(200)
    print("goodbye", name)


async def tasks_of(name: str) -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if name in str(task.get_coro())]


async def test_jobs_are_waited_for_and_their_results_read(cluster: StorageCluster) -> None:
    first, second, refused = cluster.launch_many([begun(wait_at_gate, 1), begun(wait_at_gate, 2), begun(refuse, "Ann")])
    with pytest.raises(JobFailed, match="Ann is not on the list"):
        await cluster.wait_async([first, refused], raise_on_failure=True)
    with pytest.raises(TimeoutError, match="0 of 1 jobs done"):
        await cluster.result_async(first, timeout=0.01)
    gate.set()
    assert list(await asyncio.gather(cluster.result_async(first), cluster.result_async(second))) == [1, 2]
    assert (await cluster.wait_async(refused)).status is JobStatus.FAILED
    handles = [JobHandle(cluster, job) for job in (first, second)]
    assert await wait_all_async(handles) == [await handle.wait_async() for handle in handles]
    assert await wait_all_async([]) == []


async def test_a_cancelled_wait_for_a_job_polls_no_more(cluster: StorageCluster) -> None:
    job = cluster.launch(begun(wait_at_gate, 1))
    waiting = asyncio.ensure_future(cluster.wait_async(job))
    await eventually(lambda: sync.awaited(tasks_of("run_in_loop")))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    async def left() -> bool:
        return not await sync.awaited(tasks_of("run_in_loop"))

    await eventually(left)
    assert cluster.poll(job).status is not JobStatus.STOPPED


async def test_a_log_is_followed(cluster: StorageCluster) -> None:
    job = cluster.launch(begun(announce, "Ann"))
    lines = cluster.logs(job, follow=True)
    assert (await anext(lines)).data == b"enter Ann"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(lines), 0.01)
    gate.set()
    assert [line.data async for line in lines] == [b"goodbye Ann"]
    assert [line.data async for line in cluster.logs(job)] == [line.data for line in cluster.logs(job)]
    with pytest.raises(JobNotFound):
        await anext(cluster.logs(JobId("begun-absent")))


async def test_the_items_of_a_stream_are_iterated_over(doorman: ActorHandle[Doorman]) -> None:
    gate.set()
    assert [number async for number in doorman.queue.stream(40)] == list(range(40))
    gate.clear()
    numbers = doorman.queue.stream(40)
    assert await anext(numbers) == 0
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(numbers), 0.01)
    gate.set()
    assert await anext(numbers) == 1
    assert next(numbers) == 2
    numbers.close()
    assert [number async for number in numbers] == []


async def test_actors_are_waited_for(client: StorageClient) -> None:
    group = client.create_actor_group(Doorman, name="doormen", count=2)
    handles = await group.wait_ready_async()
    assert [await handle.count.remote() for handle in handles] == [0, 0]
    resolver = ClusterResolver(client.cluster)
    assert await (await resolver.wait_for_actor_async("doormen")).count.remote() == 0
    with pytest.raises(TimeoutError, match="2 of 3 actors"):
        await resolver.lookup("doormen").wait_for_size_async(3, timeout=0.01)


async def test_blocking_calls_work_in_a_running_loop_too(
    cluster: StorageCluster, doorman: ActorHandle[Doorman]
) -> None:
    """The cells of a notebook make such calls."""
    gate.set()
    job = cluster.launch(begun(wait_at_gate, 1))
    assert cluster.result(job) == doorman.enter(1) == doorman.enter.remote(1).result()
    assert list(doorman.queue.stream(2)) == [0, 1]
    with WorkerPool(cluster, 1) as pool:
        assert [future.result() for future in pool.as_completed(pool.map(len, ["a"]))] == [1]
