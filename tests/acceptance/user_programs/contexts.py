"""Job contexts: the same program on one thread, on many, and on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

from fray.job import (
    ClusterContext,
    JobContext,
    SimpleActor,
    SyncContext,
    ThreadContext,
    create_job_ctx,
    fray_default_job_ctx,
    get_default_job_ctx,
)
from fray.pool import TaskFuture
from fray.types import JobStatus


def square(x: int) -> int:
    return x * x


def numbers(count: int) -> Iterator[int]:
    yield from range(count)


def run(ctx: JobContext) -> None:
    futures = [ctx.run(square, x) for x in range(4)]
    assert_type(futures, list[TaskFuture[int]])
    ready, pending = ctx.wait(futures, num_returns=2)
    assert_type(ready, list[TaskFuture[int]])
    assert_type(pending, list[TaskFuture[int]])
    assert_type(ctx.get(futures[0]), int)
    assert_type(ctx.get(futures), list[int])
    table = ctx.put({"a": 1})
    print(ctx.get(table), ctx.run(square, 3, name="square").result() + 1)
    counter = ctx.create_actor(SimpleActor, 5, name="counter", get_if_exists=True, lifetime="detached")
    print(ctx.get(counter.increment.remote(2)))
    assert_type(ctx.get_actor_status(counter), JobStatus)
    ctx.delete_actor(counter)


def streamed(ctx: JobContext) -> None:
    for number in ctx.run(numbers, 3):
        assert_type(number, int)


def contexts() -> None:
    assert_type(create_job_ctx("threadpool", max_workers=4), JobContext)
    for ctx in (SyncContext(), ThreadContext(max_workers=2), ClusterContext(max_workers=2), create_job_ctx()):
        with fray_default_job_ctx(ctx):
            run(get_default_job_ctx())
