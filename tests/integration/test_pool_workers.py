"""Workers of pools through a queue: how they start, what they do if they cannot, and when they end."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cloudpickle
import pytest

from fray.cluster import StorageCluster
from fray.errors import JobFailed
from fray.pool import (
    WorkerPool,
    queue_worker,
    transport,
    worker_jobs,
)
from fray.pool.queue_transport import QueueTransport
from fray.pool.worker_jobs import WorkerJobs
from fray.queue import FileQueue
from fray.types import Entrypoint, JobId, JobRequest, JobStatus, ResourceConfig
from fray_coordinator.errors import StoreUnavailable
from fray_layouts.errors import InvalidInput
from tests.support.waiting import wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SMALL = ResourceConfig(cpu=0.1)


CLUSTER = "storage"


@pytest.fixture(scope="module")
def pool(cluster: StorageCluster) -> Iterator[WorkerPool]:
    """Two workers that are up, for tests that need no pool of their own."""
    with WorkerPool(cluster, 2, SMALL, transport="queue") as opened:
        opened.wait_for_workers(timeout=200)
        yield opened


def double(number: int) -> int:
    return 2 * number


class Telling:
    """A function that records, when it is unpickled, how many items of the queue are out."""

    def __init__(self, *queue: str) -> None:
        self.queue = queue

    def __call__(self, number: int) -> int:
        return 2 * number

    def __reduce__(self) -> tuple[object, ...]:
        return tell_pending, self.queue


def tell_pending(root: str, namespace: str, name: str, notes: str) -> Callable[[int], int]:
    with FileQueue[object](root, name=name, namespace=namespace) as queue, open(notes, "a") as file:
        file.write(str(queue.pending()))
    return double


@pytest.mark.slow
def test_a_worker_is_ready_for_a_task_before_it_takes_it(cluster: StorageCluster, tmp_path: Path) -> None:
    with WorkerPool(cluster, (0, 1), SMALL, transport="queue") as pool:
        told = Telling(cluster.root, cluster.namespace, pool.name, str(tmp_path / "notes"))
        assert pool.submit(told, 1).result(200) == 2
    assert (tmp_path / "notes").read_text() == "0"


class ExitsOnImport:
    """A function whose import ends the process, as of a module that calls sys.exit."""

    def __call__(self, number: int) -> int:
        return number

    def __reduce__(self) -> tuple[object, ...]:
        return sys.exit, ("no GPU here",)


def test_a_function_whose_import_exits_ends_its_task_and_not_its_worker(cluster: StorageCluster) -> None:
    with WorkerPool(cluster, (0, 1), SMALL, transport="queue") as pool:
        with pytest.raises(RuntimeError, match="SystemExit: no GPU here"):
            pool.submit(ExitsOnImport(), 1).result(200)
        assert pool.submit(double, 1).result(200) == 2


def test_a_worker_that_starts_while_another_driver_shuts_down_the_pool_is_ended(
    cluster: StorageCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = WorkerPool(cluster, (0, 1), SMALL, transport="queue", name="gone")
    queued, launch, started = pool._transport, StorageCluster.launch_many, list[JobId]()
    assert isinstance(queued, QueueTransport)

    def shut_down_and_launch(*args: object) -> list[JobId]:
        queued._shut_down_elsewhere()
        started.extend(launch(cluster, [JobRequest("busy", Entrypoint.from_binary("sleep", ["300"]), SMALL)]))
        return started

    monkeypatch.setattr(StorageCluster, "launch_many", shut_down_and_launch)
    queued.grow(1)
    assert [info.status for info in cluster.wait(started, timeout=200)] == [JobStatus.STOPPED]
    pool.shutdown(wait=False)


@pytest.mark.slow
def test_a_submission_does_not_wait_until_the_workers_jobs_are_read(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, readers = WorkerJobs._read, []

    def noted(watch: WorkerJobs) -> None:
        readers.append(threading.current_thread())
        read(watch)

    monkeypatch.setattr(worker_jobs, "_MAX_AGE", 0.0)
    monkeypatch.setattr(worker_jobs, "READS_PER_SECOND", math.inf)
    monkeypatch.setattr(WorkerJobs, "_read", noted)
    assert [pool.submit(double, number).result(200) for number in range(5)] == [0, 2, 4, 6, 8]
    wait_until(lambda: readers)
    assert threading.current_thread() not in readers


def test_idle_workers_get_the_next_tasks_of_a_map(pool: WorkerPool, tmp_path: Path) -> None:
    def meet_at_the_end(number: int) -> None:
        """Of the last four calls, one runs on each worker; otherwise this never returns."""
        while number >= 316 and len(os.listdir(tmp_path)) < 2:
            (tmp_path / str(os.getpid())).touch()
            time.sleep(0.01)

    for future in pool.map(meet_at_the_end, range(320)):
        future.result(200)


@pytest.mark.slow
def test_tasks_that_were_handed_over_are_known_though_workers_cannot_be_started(
    cluster: StorageCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, away = StorageCluster.launch_many, threading.Event()

    def unavailable(*args: object) -> list[JobId]:
        away.set()
        raise StoreUnavailable("the storage is away")

    with WorkerPool(cluster, (0, 1), SMALL, transport="queue") as pool:
        monkeypatch.setattr(StorageCluster, "launch_many", unavailable)
        future = pool.submit(double, 1)
        assert away.wait(200)
        monkeypatch.setattr(StorageCluster, "launch_many", launch)
        assert future.result(200) == 2


def test_tasks_whose_workers_can_never_be_started_say_why(
    cluster: StorageCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: object) -> list[JobId]:
        raise InvalidInput("environment", "x", "leave it out")

    with WorkerPool(cluster, (0, 1), SMALL, transport="queue") as pool:
        monkeypatch.setattr(StorageCluster, "launch_many", refused)
        assert "leave it out" in str(pool.submit(double, 1).exception(200))


def test_workers_that_never_come_up_are_the_tasks_error(
    cluster: StorageCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(name: str, incarnation: int, idle: float) -> None:
        raise ModuleNotFoundError("No module named 'tokenizers'")

    monkeypatch.setattr(queue_worker, "run_worker", serve)
    monkeypatch.setattr(worker_jobs, "MAX_FAILURES_PER_WORKER", 1)
    with WorkerPool(cluster, (0, 1), SMALL, transport="queue") as pool:
        with pytest.raises(JobFailed, match="No module named 'tokenizers'"):
            pool.submit(double, 1).result(200)


def test_workers_that_may_be_busy_are_not_spare(pool: WorkerPool, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def wait() -> None:
        while not gate.exists():
            time.sleep(0.01)

    future = pool.submit(wait)
    pool._transport.shrink(1)
    assert pool._transport.wanted == 2
    gate.touch()
    future.result(200)


def test_an_idle_worker_of_an_elastic_pool_ends_and_others_come_for_work(
    cluster: StorageCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "SPARE_SECONDS", 0.5)
    with WorkerPool(cluster, (0, 1), SMALL, transport="queue") as pool:
        before = pool.submit(os.getpid).result(200)
        wait_until(lambda: pool.size == 0)
        assert pool.submit(os.getpid).result(200) != before
