"""Queues."""

from __future__ import annotations

from typing import Any, TypedDict, assert_type

from fray.queue import (
    AsyncQueue,
    Counts,
    DeadLetter,
    FileQueue,
    HttpQueue,
    HttpQueueServer,
    Lease,
    LeaseLost,
    MemoryQueue,
    Queue,
    UnknownLease,
    Unreadable,
)


class Prompt(TypedDict):
    text: str
    tokens: int


def produce(queue: Queue[Prompt]) -> None:
    queue.push({"text": "hello", "tokens": 2})
    queue.push_many([{"text": "a", "tokens": 1}], batch=100)


def consume(queue: Queue[Prompt]) -> None:
    for lease in queue:
        assert_type(lease, Lease[Prompt])
        with lease:
            assert_type(lease.item, Prompt)
    popped = queue.pop(lease_timeout=30, wait=1.5)
    assert_type(popped, Lease[Prompt] | None)
    if popped is not None:
        popped.extend(60)
        try:
            popped.done()
        except (LeaseLost, UnknownLease) as error:
            print(error.leases)
    leases = queue.pop_many(10)
    assert_type(leases, list[Lease[Prompt]])
    queue.done(leases)
    assert_type(queue.counts(), Counts)
    assert_type(queue.letters(), list[DeadLetter])
    assert_type(queue.redrive(), int)
    assert_type(queue.purge(), int)
    assert_type(queue.size(), int)
    try:
        assert_type(queue.peek(), Prompt | None)
    except Unreadable as error:
        print(error)


def kinds() -> None:
    with FileQueue[Prompt]("s3://bucket/fray", name="prompts", namespace="lab", encoding="json") as queue:
        produce(queue)
    memory: MemoryQueue[Prompt] = MemoryQueue()
    consume(memory)
    with HttpQueueServer() as server:
        served = server.new_queue("prompts")
        assert_type(served, HttpQueue[Any])
        mine = server.new_queue("mine", memory)
        assert_type(mine, HttpQueue[Prompt])
        assert_type(server.port, int)
    consume(HttpQueue[Prompt]("10.0.0.7", 8080, "prompts"))


async def awaited(queue: Queue[Prompt]) -> None:
    waiting = queue.aio
    assert_type(waiting, AsyncQueue[Prompt])
    await waiting.push({"text": "hello", "tokens": 2})
    lease = await waiting.pop(wait=5)
    assert_type(lease, Lease[Prompt] | None)
    if lease is not None:
        await waiting.done(lease)


def without_annotation() -> None:
    queue = FileQueue("memory://work")
    queue.push_many(range(10))
    for lease in queue:
        assert_type(lease, Lease[Any])
    assert_type(MemoryQueue().pop(), Lease[Any] | None)
    assert_type(HttpQueue("http://10.0.0.7:8080", "work").peek(), Any | None)
