"""Worker pools."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, assert_type

from fray.cluster import LocalCluster, ResourceConfig
from fray.pool import ObjectGone, ObjectRef, PoolClosed, PoolNotFound, TaskKillsWorkers, WorkerPool


def square(x: int) -> int:
    return x * x


def work(cluster: LocalCluster) -> None:
    with WorkerPool(cluster, num_workers=(1, 4), resources=ResourceConfig.with_cpu(cpu=1, memory="1GB")) as pool:
        assert_type(pool.submit(square, 2), Future[int])
        futures = pool.map(square, range(10))
        assert_type(futures, list[Future[int]])
        for future in pool.as_completed(futures, timeout=60, progress="squares"):
            assert_type(future.result(), int)
        pool.wait_for_workers(min_workers=1, timeout=60)
        pool.resize(8)
        assert_type(pool.size, int)


def with_a_queue() -> None:
    try:
        pool = WorkerPool.attach("ranking")
    except PoolNotFound:
        pool = WorkerPool(num_workers=2, transport="queue", name="ranking")
    table = pool.put({"a": 1})
    assert_type(table, ObjectRef)
    assert_type(pool.submit_as("key", square, 3), Future[int])
    assert_type(pool.map_as(square, {"one": 1}), list[Future[int]])
    assert_type(pool.futures, Mapping[str, Future[Any]])
    assert_type(pool.folder, str)
    try:
        pool.submit(square, 1).result()
    except (TaskKillsWorkers, PoolClosed, ObjectGone) as error:
        print(error)
    pool.detach()
