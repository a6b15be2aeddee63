"""Real pipelines on file queues: two agents, workers and drivers that are killed, and no coordinator."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import release
from processes import processes
from release import Dataset

from fray.backends.ray.jobs import RayJobs
from fray.cluster import LocalCluster, StorageCluster
from fray.errors import InvalidInput, JobFailed
from fray.pool import queue_worker
from fray.types import Entrypoint, JobRequest
from fray.zephyr import Backend, FrayBackend, ShardGivenUp
from tests.support.agents import agents, on_cluster
from tests.support.waiting import wait_until

# The workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(release)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageCluster]:
    place = tmp_path_factory.mktemp("cluster")
    on_cluster(place / "root", lambda core: core.store.learn_clock())
    with agents(str(place / "root"), place / "work", count=2, cores=3):
        cluster = StorageCluster(str(place / "root"))
        yield cluster
        jobs = [job.job_id for job in cluster.list_jobs() if job.job_id != cluster.owner()]
        cluster.wait(jobs, timeout=200)
        assert processes("FRAY_CLUSTER_SPEC", cluster.root, str(place / "work")) == []
        leftovers = [path for part in ("tasks", "queues") for path in (place / "root" / part).rglob("*")]
        assert [path for path in leftovers if path.is_file()] == []


@pytest.fixture
def backend(cluster: StorageCluster) -> FrayBackend:
    return FrayBackend(cluster, max_parallelism=4, memory_per_worker="1GB")


def rows() -> Dataset:
    """Forty rows in four shards."""
    parts = Dataset.from_list([range(first, 40, 4) for first in range(4)])
    return parts.flat_map(lambda part: [{"kind": "odd" if n % 2 else "even", "number": n} for n in part])


def test_results_come_in_order(backend: FrayBackend) -> None:
    found = backend.execute(Dataset.from_list(list(range(3))).map(lambda item: (item, os.getpid())))
    assert [item for item, _ in found] == [0, 1, 2]
    assert os.getpid() not in {pid for _, pid in found}


def test_groups_and_reshards_go_through_files(backend: FrayBackend) -> None:
    groups = rows().group_by(
        key=lambda row: row["kind"],
        reducer=lambda kind, found: {"kind": kind, "sum": sum(row["number"] for row in found)},
        num_output_shards=3,
    )
    sums = {row["kind"]: row["sum"] for row in backend.execute(groups)}
    assert sums == {"even": sum(range(0, 40, 2)), "odd": sum(range(1, 40, 2))}
    doubled = rows().map(lambda row: row["number"]).reshard(2).map(lambda number: number * 2)
    assert sorted(backend.execute(doubled)) == [number * 2 for number in range(40)]
    assert list(backend.execute(rows().map(lambda row: row["number"]).reduce(sum))) == [sum(range(40))]


def test_both_sides_of_a_join_are_run(backend: FrayBackend) -> None:
    def keyed(rows: list[dict[str, Any]]) -> Dataset:
        return Dataset.from_list(rows).group_by(
            key=lambda row: row["id"], reducer=lambda key, group: next(iter(group)), num_output_shards=2
        )

    left = keyed([{"id": i, "left": i * 10} for i in range(6)])
    right = keyed([{"id": i, "right": i * 100} for i in range(3, 9)])
    joined = left.sorted_merge_join(
        right,
        left_key=lambda row: row["id"],
        right_key=lambda row: row["id"],
        combiner=lambda one, other: {**one, **other},
        how="inner",
    )
    rows = sorted(backend.execute(joined), key=lambda row: row["id"])
    assert rows == [{"id": i, "left": i * 10, "right": i * 100} for i in range(3, 6)]


def test_an_exception_of_a_shard_is_raised_with_its_place(backend: FrayBackend) -> None:
    def fail(item: int) -> int:
        raise LookupError(f"no {item}")

    with pytest.raises(LookupError, match="no 7") as caught:
        backend.execute(Dataset.from_list([7]).map(fail), name="fails")
    assert caught.value.__notes__ == ["raised in shard 0 of stage 0 of fails"]
    assert backend.execute(Dataset.from_list([7]).map(lambda item: item + 1), name="fails") == [8]


def test_a_failed_execution_goes_on_with_the_shards_that_failed(cluster: StorageCluster, tmp_path: Path) -> None:
    backend = FrayBackend(cluster, max_parallelism=1, memory_per_worker="1GB")  # one shard after the other

    def fail_while_broken(item: int) -> int:
        (tmp_path / f"{item}-{time.time_ns()}").touch()
        if item == 1 and not (tmp_path / "mended").exists():
            raise LookupError("no 1")
        return item

    def begun() -> list[str]:
        return sorted(mark.name[0] for mark in tmp_path.iterdir())

    def execute(items: int) -> list[int]:
        return backend.execute(Dataset.from_list(list(range(items))).map(fail_while_broken), name="mended")

    with pytest.raises(LookupError):
        execute(2)
    assert begun() == ["0", "1", "1", "1"]
    with pytest.raises(InvalidInput, match="had 2 shards when it was begun and has 3 now"):
        execute(3)
    (tmp_path / "mended").touch()
    assert execute(2) == [0, 1]
    assert begun() == ["0", "1", "1", "1", "1", "m"]
    assert execute(3) == [0, 1, 2], "the name is free"


def test_the_shard_of_a_killed_worker_comes_back(backend: FrayBackend, tmp_path: Path) -> None:
    def die_once(item: int) -> int:
        mark = tmp_path / f"mark-{item}"
        if item == 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return item * 2

    assert backend.execute(Dataset.from_list(list(range(5))).map(die_once)) == [0, 2, 4, 6, 8]
    assert (tmp_path / "mark-2").exists()


DRIVER = """
import sys, time
from pathlib import Path
from release import Dataset
from fray.cluster import StorageCluster
from fray.zephyr import FrayBackend

marks = Path(sys.argv[2])

def marked(item):
    (marks / f"{item}-{time.time_ns()}").touch()
    deadline = time.time() + 60
    while item == 5 and not (marks / "go").exists() and time.time() < deadline:
        time.sleep(0.02)
    return item

backend = FrayBackend(StorageCluster(sys.argv[1]), max_parallelism=2)
print(backend.execute(Dataset.from_list(list(range(6))).map(marked), name="goes-on"), flush=True)
"""


def paths() -> str:
    """The paths with the modules of these tests, and this process's own, for a driver."""
    return os.pathsep.join([str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])


def test_a_killed_driver_is_started_again_and_finished_shards_are_not(cluster: StorageCluster, tmp_path: Path) -> None:
    def drive() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", DRIVER, cluster.root, str(tmp_path)]
        environment = {**os.environ, "PYTHONPATH": paths()}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    first = drive()
    wait_until(lambda: len({mark.name[0] for mark in tmp_path.iterdir()}) == 6)
    first.kill()
    first.wait()
    (tmp_path / "go").touch()
    said, _ = drive().communicate(timeout=100)
    assert said.strip() == str(list(range(6)))
    assert len(list(tmp_path.iterdir())) == 6 + 1, "each shard was begun once"


def test_a_job_that_was_killed_goes_on_with_its_executions(cluster: StorageCluster, tmp_path: Path) -> None:
    """The name belongs to the job, and its workers are its children."""

    def drive() -> list[int]:
        def marked(item: int) -> int:
            (tmp_path / f"{item}-{time.time_ns()}").touch()
            return item

        found = Backend.execute(Dataset.from_list([1, 2]).map(marked), max_parallelism=1, memory="1GB")
        if int(os.environ["FRAY_ATTEMPT"]) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    request = JobRequest("drives", Entrypoint.from_callable(drive), max_retries_failure=1)
    assert cluster.result(cluster.launch(request), timeout=100) == [1, 2]


@pytest.mark.timeout(240)  # each worker that dies keeps its lease for twenty seconds
def test_a_shard_that_kills_its_workers_is_given_up(backend: FrayBackend) -> None:
    def kill(item: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return item

    with pytest.raises(ShardGivenUp, match="shard 0 of stage 0"):
        backend.execute(Dataset.from_list([1]).map(kill), name="deadly")
    assert backend.execute(Dataset.from_list([1]).map(lambda item: item), name="deadly") == [1]


def test_workers_that_never_come_up_are_not_started_for_ever(
    backend: FrayBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(name: str, incarnation: int, idle: float) -> None:
        raise ModuleNotFoundError("No module named 'zephyr'")

    dataset = Dataset.from_list([1]).map(lambda item: item)
    monkeypatch.setattr(queue_worker, "run_worker", serve)
    with pytest.raises(JobFailed, match="No module named 'zephyr'"):
        backend.execute(dataset, name="broken")
    monkeypatch.undo()
    assert backend.execute(dataset, name="broken") == [1]


def test_a_person_at_a_terminal_sees_how_far_each_stage_is(cluster: StorageCluster, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", DRIVER, cluster.root, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": paths(), "TERM": "xterm", "COLUMNS": "100"}
    driver = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    said = b""
    with suppress(OSError):  # the other end is closed
        while part := os.read(ours, 65536):
            said += part
    assert driver.wait(100) == 0
    assert re.search(rb"goes-on 0 Map .*6/6", said)


def test_outside_of_a_cluster_threads_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FRAY_CLUSTER_SPEC", raising=False)
    assert Backend.execute(Dataset.from_list([1, 2, 3]).map(lambda item: (item, os.getpid()))) == [
        (item, os.getpid()) for item in (1, 2, 3)
    ]


def test_a_private_cluster_will_do() -> None:
    with LocalCluster() as cluster:
        assert FrayBackend(cluster, memory_per_worker="1GB").execute(Dataset.from_list([1]).map(lambda n: n + 1)) == [2]


def test_ray_is_refused_with_an_alternative() -> None:
    with pytest.raises(InvalidInput, match=r"through storage, .*StorageCluster\(root\)"):
        FrayBackend(RayJobs())
