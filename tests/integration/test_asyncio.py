"""Programs on an event loop, as servers and notebooks have one: nothing blocks it that can be awaited instead."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION

import pytest

from fray.actor import ActorHandle
from fray.client import StorageClient
from fray.cluster import StorageCluster
from fray.job import ThreadContext
from fray.pool import WorkerPool
from fray.types import ActorConfig
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
    told: list[int] = []
    entering.add_done_callback(lambda future: told.append(future.result()))
    gate.set()
    assert next(concurrent.futures.as_completed([entering], 200)) is entering
    assert list(concurrent.futures.as_completed(waiting, 200))
    assert told == [entering.result()] == [1]
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


async def test_who_stops_waiting_does_not_cancel_the_call(doorman: ActorHandle[Doorman]) -> None:
    before, call = doorman.count(), doorman.enter.remote(7)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call, 0.01)
    gate.set()
    assert await call == 7
    assert doorman.count() == before + 1


async def test_tasks_are_awaited_and_come_as_they_are_done(cluster: StorageCluster) -> None:
    async with WorkerPool(cluster, 2) as pool:
        await pool.wait_for_workers_async()
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


async def test_a_task_that_was_not_sent_is_cancelled_with_who_awaits_it(cluster: StorageCluster) -> None:
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
