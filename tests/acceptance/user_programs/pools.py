"""Worker pools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_type

from fray.cluster import LocalCluster, ResourceConfig
from fray.pool import ObjectGone, ObjectRef, PoolClosed, PoolNotFound, TaskFuture, TaskKillsWorkers, WorkerPool


def square(x: int) -> int:
    return x * x


def work(cluster: LocalCluster) -> None:
    with WorkerPool(cluster, num_workers=(1, 4), resources=ResourceConfig.with_cpu(cpu=1, memory="1GB")) as pool:
        assert_type(pool.submit(square, 2), TaskFuture[int])
        futures = pool.map(square, range(10))
        assert_type(futures, list[TaskFuture[int]])
        for future in pool.as_completed(futures, timeout=60, progress="squares"):
            assert_type(future.result(), int)
        pool.wait_for_workers(min_workers=1, timeout=60)
        pool.resize(8)
        assert_type(pool.size, int)


async def work_in_a_loop(pool: WorkerPool) -> None:
    assert_type(await pool.submit(square, 2), int)
    async for future in pool.as_completed(pool.map(square, range(10))):
        assert_type(await future, int)


def with_a_queue() -> None:
    try:
        pool = WorkerPool.attach("ranking")
    except PoolNotFound:
        pool = WorkerPool(num_workers=2, transport="queue", name="ranking")
    table = pool.put({"a": 1})
    assert_type(table, ObjectRef)
    assert_type(pool.submit_as("key", square, 3), TaskFuture[int])
    assert_type(pool.map_as(square, {"one": 1}, retry_failed=True), list[TaskFuture[int]])
    assert_type(pool.futures, Mapping[str, TaskFuture[Any]])
    assert_type(pool.folder, str)
    try:
        pool.submit(square, 1).result()
    except (TaskKillsWorkers, PoolClosed, ObjectGone) as error:
        print(error)
    pool.detach()
