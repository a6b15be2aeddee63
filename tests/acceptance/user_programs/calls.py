"""What a user's editor knows of calls: what fits has the type that a reader expects, and what does not is an error."""

from __future__ import annotations

from typing import Any, assert_type

from fray.actor import ActorFuture, ActorGroup, ActorHandle, method, typed
from fray.client import Client, JobHandle
from fray.pool import TaskFuture, WorkerPool
from fray.queue import FileQueue, Lease
from fray.types import Entrypoint, JobRequest


class Counter:
    @method
    def add(self, by: int) -> int:
        return by

    def name(self) -> str:
        return "counter"


def square(x: int) -> int:
    return x * x


def calls(client: Client) -> None:
    counter = client.create_actor(Counter, name="counter")
    assert_type(counter, ActorHandle[Counter])
    assert_type(counter.add.remote(1), ActorFuture[Any])
    assert_type(typed(counter).add.remote(1), ActorFuture[int])
    assert_type(typed(counter).add.remote(1).result(), int)
    assert_type(typed(counter).add(1), int)
    assert_type(typed(counter).name(), str)
    typed(counter).add.remote("1")  # type: ignore[arg-type]
    typed(counter).subtract(1)  # type: ignore[attr-defined]
    assert_type(client.create_actor_group(Counter, name="group", count=2), ActorGroup[Counter])
    assert_type(client.submit(JobRequest("job", Entrypoint.from_callable(square, args=[2]))), JobHandle)


async def calls_in_a_loop(counter: ActorHandle[Counter]) -> None:
    assert_type(await typed(counter).add.remote(1), int)


def work(pool: WorkerPool, queue: FileQueue[str]) -> None:
    assert_type(pool.submit(square, 2), TaskFuture[int])
    assert_type(queue.pop(), Lease[str] | None)
    for lease in queue:
        assert_type(lease.item, str)
    queue.push(1)  # type: ignore[arg-type]
