"""Worker pools through a queue: which objects outlive drivers, which stay in storage, and who gets which task."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from fray.cluster import StorageCluster
from fray.pool import (
    PoolClosed,
    PoolNotFound,
    TaskKillsWorkers,
    WorkerPool,
    monitor,
    queue_worker,
)
from fray.pool.queue_transport import QueueTransport
from fray.pool.queue_worker import QueueWorker
from fray.queue import FileQueue
from fray.types import ResourceConfig
from fray_coordinator import worker_pools
from tests.support.waiting import wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SMALL = ResourceConfig(cpu=0.1)


CLUSTER = "storage"


def double(number: int) -> int:
    return 2 * number


_DRIVER = """
import pathlib, sys, time
from fray.cluster import StorageCluster
from fray.pool import WorkerPool
from fray.types import ResourceConfig

cluster = StorageCluster(sys.argv[1], namespace="team")
pool = WorkerPool(cluster, 2, ResourceConfig(cpu=0.1), transport="queue", name="survivor")
def slow(number, folder):
    while number > 4 and not pathlib.Path(folder, "gate").exists():
        time.sleep(0.01)
    time.sleep(0.2)
    with open(f"{folder}/notes-{number}", "a") as file:
        file.write("x")
    return number
futures = [pool.submit_as(f"part-{number}", slow, number, sys.argv[2]) for number in range(20)]
futures[2].result()
print("go", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_another_driver_goes_on_where_one_has_died(cluster: StorageCluster, tmp_path: Path) -> None:
    first = subprocess.Popen([sys.executable, "-c", _DRIVER, cluster.root, str(tmp_path)], stdout=subprocess.PIPE)
    assert first.stdout is not None
    first.stdout.readline()
    first.kill()
    first.wait()
    mine = StorageCluster(cluster.root, namespace="team")
    with WorkerPool.attach("survivor", mine, 2, SMALL) as pool:
        futures = [pool.submit_as(f"part-{number}", double, number) for number in range(21)]
        (tmp_path / "gate").touch()  # until now, most tasks of the first driver could not end
        assert [future.result(200) for future in futures] == [*range(20), 40]
        assert sorted(pool.futures) == sorted(f"part-{number}" for number in range(21))
    assert [path.read_text() for path in tmp_path.glob("notes-*")] == ["x"] * 20
    with pytest.raises(PoolNotFound):
        WorkerPool.attach("survivor", mine)
    mine.close()


def test_a_later_driver_finds_the_tasks_of_an_earlier_one(cluster: StorageCluster, tmp_path: Path) -> None:
    def opened() -> WorkerPool:
        return WorkerPool.attach("nightly", cluster, (0, 2), SMALL, namespace="shared", create=True)

    def noted(number: int) -> int:
        with open(tmp_path / str(number), "a") as file:
            file.write("x")
        return number

    with pytest.raises(PoolNotFound):
        WorkerPool.attach("nightly", cluster, namespace="shared")
    first = opened()
    with pytest.raises(PoolNotFound):
        WorkerPool.attach("nightly", cluster)  # in the cluster's own namespace
    assert [future.result(200) for future in first.map_as(noted, {"a": 1, "b": 2})] == [1, 2]
    unfinished = first.submit_as("slow", time.sleep, 60.0)
    first.detach()
    with pytest.raises(PoolClosed, match="attach"):
        unfinished.result(0)
    second = opened()
    assert [future.result(200) for future in second.map_as(noted, {"b": 2, "c": 3, "a": 1})] == [2, 3, 1]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"1": "x", "2": "x", "3": "x"}
    second.shutdown(wait=False)
    with pytest.raises(PoolNotFound):
        WorkerPool.attach("nightly", cluster, namespace="shared")


def test_keys_that_failed_run_again_when_asked_for_and_later_drivers_see_it(cluster: StorageCluster) -> None:
    with WorkerPool(cluster, 1, SMALL, transport="queue", name="mended") as pool:
        items = {str(number): number for number in range(4)}
        results = [future.exception(200) for future in pool.map_as(lambda number: 6 // number, items)]
        assert [type(error) for error in results] == [ZeroDivisionError, *[type(None)] * 3]
        assert [future.exception(200) for future in pool.map_as(double, items)] == results  # nothing runs by itself
        again = pool.map_as(double, items, retry_failed=True)
        assert [future.result(200) for future in again] == [0, 6, 3, 2]
        later = WorkerPool.attach("mended", cluster, 1, SMALL, shared=False)
        assert {key: future.result(200) for key, future in later.futures.items()} == {"0": 0, "1": 6, "2": 3, "3": 2}
        later.detach()


def test_a_task_whose_outcome_is_being_written_when_its_worker_is_stopped_runs_once(
    cluster: StorageCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, writing, stopping = tmp_path / "notes", tmp_path / "writing", tmp_path / "stopping"
    serve, write, stop = queue_worker.run_worker, worker_pools.write_outcomes, QueueWorker._stop

    def serve_with_slow_writes(name: str, incarnation: int, idle: float) -> None:
        async def slowly(*args: Any, **kwargs: Any) -> None:
            writing.touch()
            while not stopping.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(1.0)  # a worker that does not wait for this ends now
            await write(*args, **kwargs)

        def noted_stop(worker: QueueWorker) -> None:
            stopping.touch()
            stop(worker)

        worker_pools.write_outcomes = slowly
        QueueWorker._stop = noted_stop  # type: ignore[method-assign, assignment]
        serve(name, incarnation, idle)

    def noted() -> str:
        with notes.open("a") as file:
            file.write("x")
        return "noted"

    monkeypatch.setattr(queue_worker, "run_worker", serve_with_slow_writes)
    first = WorkerPool(cluster, 1, SMALL, transport="queue", name="stopped")
    first.submit_as("once", noted)
    wait_until(writing.exists)
    first.detach()
    monkeypatch.undo()
    with WorkerPool.attach("stopped", cluster, 1, SMALL) as second:
        assert second.futures["once"].result(200) == "noted"
    assert notes.read_text() == "x"


def test_files_that_tasks_keep_with_the_pool_go_with_it(cluster: StorageCluster) -> None:
    with WorkerPool(cluster, 1, SMALL, transport="queue") as pool:
        folder = Path(pool.folder.removeprefix("file://"))

        def keep() -> None:
            (folder / "part").mkdir(parents=True)
            (folder / "part" / "0.pickle").write_bytes(b"kept")

        pool.submit(keep).result(200)
        assert (folder / "part" / "0.pickle").exists()
    assert not (folder / "part" / "0.pickle").exists()


def test_an_object_is_fetched_in_the_place_of_any_argument(cluster: StorageCluster) -> None:
    with WorkerPool(cluster, 1, SMALL, transport="queue") as pool:
        kept: Any = pool.put([3, 1, 2])
        assert pool.submit(sorted, kept, reverse=True).result(200) == [3, 2, 1]
        assert pool.submit(dict, kept=kept).result(200) == {"kept": [3, 1, 2]}


_REDEFINED = """
import pickle, sys
from fray.cluster import StorageCluster
from fray.pool import WorkerPool
from fray.types import ResourceConfig

def define(value): exec(f"def number(): return {value}", globals())
def task(): return pickle.loads(pickle.dumps(number))()
with WorkerPool(StorageCluster(sys.argv[1]), 1, ResourceConfig(cpu=0.1), transport="queue") as pool:
    for value in (1, 2, 1):
        define(value)
        print(pool.submit(task).result(200))
"""


@pytest.mark.slow
def test_each_task_has_the_names_of_the_script_that_came_with_its_function(cluster: StorageCluster) -> None:
    command = [sys.executable, "-c", _REDEFINED, cluster.root]
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split() == ["1", "2", "1"]


def stored(cluster: StorageCluster, name: str) -> list[str]:
    """The keys of a pool in storage."""
    root = Path(cluster.root.removeprefix("file://"))
    return [str(path) for path in root.rglob("*") if path.is_file() and f"/{name}~" in str(path)]


def test_a_pool_that_was_shut_down_takes_no_tasks_and_leaves_nothing(cluster: StorageCluster) -> None:
    pool = WorkerPool(cluster, 1, SMALL, transport="queue", name="over")
    assert stored(cluster, "over")
    pool.shutdown()
    with pytest.raises(PoolClosed):
        pool.submit(double, 1)
    with pytest.raises(PoolClosed):
        pool.put("late")
    wait_until(lambda: not stored(cluster, "over"))


def test_a_pool_that_one_driver_shuts_down_is_closed_for_all(
    cluster: StorageCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "_DEAD_LETTER_INTERVAL", 0.1)
    first = WorkerPool(cluster, 1, SMALL, transport="queue", name="shared")
    second = WorkerPool.attach("shared", cluster, 1, SMALL)
    idle = WorkerPool.attach("shared", cluster, 1, SMALL)
    waiting = second.submit_as("slow", time.sleep, 600.0)
    first.shutdown(wait=False)
    assert isinstance(waiting.exception(200), PoolClosed)
    for other in (second, idle):
        with pytest.raises(PoolClosed, match="another driver"):
            other.submit(double, 1)
        other.shutdown()
    wait_until(lambda: not stored(cluster, "shared"))
    WorkerPool(cluster, 1, SMALL, transport="queue", name="shared").shutdown()


def test_a_result_that_is_written_after_the_shutdown_does_not_stay(cluster: StorageCluster, tmp_path: Path) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"

    def stubborn() -> str:
        begun.touch()
        while not gate.exists():
            time.sleep(0.01)
        return "late"

    pool = WorkerPool(cluster, 1, SMALL, transport="queue", name="hasty")
    pool.submit(stubborn)
    wait_until(begun.exists)
    jobs = [job.job_id for job in cluster.list_jobs() if job.name == "hasty"]
    pool.shutdown(wait=False)
    gate.touch()
    cluster.wait(jobs, raise_on_failure=False)
    assert stored(cluster, "hasty") == []


@pytest.mark.slow
def test_all_tasks_that_were_given_up_end_however_many(
    cluster: StorageCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "_DEAD_LETTER_INTERVAL", 0.1)
    pool = WorkerPool(cluster, (0, 1), SMALL, transport="queue", name="plague")
    queued = pool._transport
    assert isinstance(queued, QueueTransport)
    futures = [queued._table.enter(str(number)) for number in range(130)]
    queue = FileQueue[tuple[str, bytes, bytes]](cluster.root, name="plague", namespace=cluster.namespace)
    queue.push_many([(str(number), b"", b"") for number in range(130)], batch=130)
    while leases := queue.pop_many(130):
        queue.release(leases)
    queued._monitor.wake()
    assert all(isinstance(future.exception(200), TaskKillsWorkers) for future in futures)
    queue.close()
    pool.shutdown()


def test_an_error_in_a_users_callback_leaves_no_future_waiting(cluster: StorageCluster, tmp_path: Path) -> None:
    def interrupt(future: Future[None]) -> None:
        raise KeyboardInterrupt

    gate = tmp_path / "gate"

    def wait() -> None:
        while not gate.exists():
            time.sleep(0.01)

    with WorkerPool(cluster, 1, SMALL, transport="queue") as pool:
        first, behind = pool.submit(wait), pool.submit(double, 1)
        first.add_done_callback(interrupt)
        gate.touch()
        assert isinstance(behind.exception(200), PoolClosed) or behind.result() == 2
        assert pool.submit(double, 2).result(200) == 4


def test_a_name_belongs_to_one_pool(cluster: StorageCluster) -> None:
    with WorkerPool(cluster, 1, SMALL, transport="queue", name="only"):
        with pytest.raises(ValueError, match="only"):
            WorkerPool(cluster, 1, SMALL, transport="queue", name="only")
