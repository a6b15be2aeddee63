"""Gangs on a private cluster, as processes and as threads: all replicas run, whatever other jobs do."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fray import JobFailed, JobRequest, JobStatus, LocalCluster, ResourceConfig, current_cluster
from fray.cluster import Replica, current_replica
from fray.errors import InvalidInput
from fray.types import Entrypoint, JobGroupConfig, ReservationConfig
from tests.support.waiting import wait_until


@pytest.fixture(params=[pytest.param("processes", marks=pytest.mark.slow), "threads"])
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with LocalCluster(1, use_processes=request.param == "processes") as cluster:
        yield cluster


def gang(function: Callable[..., object], *args: object, replicas: int = 3) -> JobRequest:
    return JobRequest("gang", Entrypoint.from_callable(function, args=args), replicas=replicas)


def place() -> Replica:
    return current_replica()


def test_every_replica_runs_and_knows_its_place(cluster: LocalCluster) -> None:
    places = cluster.results(cluster.launch(gang(place)), timeout=200)
    assert [(mine.index, mine.count, len(mine.workers)) for mine in places] == [(0, 3, 3), (1, 3, 3), (2, 3, 3)]
    assert len({mine.coordinator for mine in places}) == 1
    assert current_replica() == Replica()


def meet(folder: str) -> int:
    """Return after all replicas have come."""
    mine = current_replica()
    Path(folder, str(mine.index)).touch()
    wait_until(lambda: len(list(Path(folder).iterdir())) == mine.count)
    return mine.index


def test_a_gang_is_larger_than_the_cluster_and_a_job_that_waits_for_it_is_in_nobodys_way(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    def parent() -> list[int]:
        mine = current_cluster()
        return mine.results(mine.launch(gang(meet, str(tmp_path), replicas=4)))

    assert cluster.result(cluster.launch(JobRequest("parent", parent)), timeout=200) == [0, 1, 2, 3]


def fail_in_one(folder: str) -> None:
    index = meet(folder)
    if index == 1:
        raise ValueError("no data")
    while True:
        time.sleep(0.05)


def test_the_failure_of_one_ends_all_and_is_told(cluster: LocalCluster, tmp_path: Path) -> None:
    job = cluster.launch(gang(fail_in_one, str(tmp_path)))
    with pytest.raises(JobFailed, match=r"replica 1 on .*: ValueError: no data") as failed:
        cluster.results(job, timeout=200)
    assert isinstance(failed.value.__cause__, ValueError)
    assert cluster.poll(job).failures == 1


def hang(folder: str) -> None:
    meet(folder)
    while True:
        time.sleep(0.05)


def test_a_gang_is_stopped(cluster: LocalCluster, tmp_path: Path) -> None:
    job = cluster.launch(gang(hang, str(tmp_path)))
    wait_until(lambda: len(list(tmp_path.iterdir())) == 3)
    cluster.terminate(job)
    assert cluster.wait(job, timeout=200).status is JobStatus.STOPPED


def test_commands_are_gangs_too(cluster: LocalCluster) -> None:
    command = Entrypoint.from_binary("sh", ["-c", "echo $FRAY_REPLICA of $FRAY_REPLICAS"])
    job = cluster.launch(JobRequest("gang", command, ResourceConfig(replicas=2)))
    assert cluster.wait(job, raise_on_failure=True, timeout=200).replicas == 2
    assert sorted(line.data for line in cluster.logs(job)) == [b"0 of 2", b"1 of 2"]
    assert [line.data for line in cluster.logs(job, follow=True, replica=1)] == [b"1 of 2"]


def say() -> None:
    print("here")


def test_monitor_tells_whose_each_line_is(cluster: LocalCluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.log_to_driver = False
    info = cluster.monitor(cluster.launch(gang(say, replicas=2)))
    assert info.status is JobStatus.SUCCEEDED
    shown = capfd.readouterr().out  # threads print there as well, with a line's text and its end apart
    assert (shown.count("[0] here"), shown.count("[1] here")) == (1, 1)


def test_the_program_shows_whose_each_line_is(cluster: LocalCluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.log_to_driver = True
    job = cluster.launch(gang(say, replicas=2))
    cluster.wait(job, timeout=200)
    cluster.close()
    shown = capfd.readouterr().out.splitlines()
    assert sorted(shown) == [f"({job} [0]) here", f"({job} [1]) here"]


def test_jobs_go_into_the_reservation_that_they_name_until_it_ends() -> None:
    with LocalCluster(1, use_processes=False) as cluster:
        reservation = cluster.create_reservation(ReservationConfig(ResourceConfig(cpu=1, replicas=2)))
        job = JobRequest("job", Entrypoint.from_callable(len, args=["abc"]))
        inside = dataclasses.replace(job, pool=f"~{reservation}")
        assert cluster.result(cluster.launch(inside), timeout=200) == 3
        [grouped] = cluster.launch_group([job], JobGroupConfig("group"), reservation_id=reservation)
        assert cluster.result(grouped, timeout=200) == 3
        with pytest.raises(InvalidInput, match="is not accepted; it is for namespace"):
            cluster.launch_group([job], JobGroupConfig("group", namespace="another"), reservation_id=reservation)
        cluster.release_reservation(reservation)
        with pytest.raises(InvalidInput, match="it has ended"):
            cluster.launch(inside)
        with pytest.raises(InvalidInput, match="it has ended"):
            cluster.launch_group([job], JobGroupConfig("group"), reservation_id=reservation)
