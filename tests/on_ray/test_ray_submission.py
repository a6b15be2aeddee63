"""`RayCluster`: jobs through Ray's job submission API, over the HTTP of a real dashboard."""

from __future__ import annotations

import sys
import time

import cloudpickle
import pytest

from fray.cluster import RayCluster, open_cluster
from fray.errors import InvalidInput, JobFailed, JobNotFound, NoResult, Temporary
from fray.types import Entrypoint, JobGroupConfig, JobRequest, JobStatus, ReservationConfig, ResourceConfig

cloudpickle.register_pickle_by_value(sys.modules[__name__])

PATIENCE = 300.0
"""Seconds for a job, which begins with a driver, on a machine that is busy with others."""

NONE = ResourceConfig(cpu=0)


@pytest.fixture
def cluster(dashboard: str) -> RayCluster:
    return RayCluster(dashboard)


def greet(name: str) -> None:
    print("hello", name)
    print("and goodbye")


def test_a_job_is_launched_watched_and_listed(cluster: RayCluster, capsys: pytest.CaptureFixture[str]) -> None:
    job = cluster.launch(JobRequest("greet", Entrypoint.from_callable(greet, args=("you",)), NONE))
    info = cluster.monitor(job)
    assert (info.status, info.name) == (JobStatus.SUCCEEDED, "greet")
    assert capsys.readouterr().out.splitlines()[-2:] == ["hello you", "and goodbye"]
    assert cluster.poll(job).end_time is not None
    assert job in [known.job_id for known in cluster.list_jobs()]
    with pytest.raises(NoResult, match="RayClient"):
        cluster.result(job)


def test_a_job_is_offered_again_while_ray_has_no_agent_for_it(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, refusals = cluster._client.submit_job, iter(range(3))

    def refuse_first(**job: object) -> object:
        if next(refusals, None) is not None:
            raise RuntimeError("Request failed: No available agent to submit job, please try again later.")
        return submit(**job)

    monkeypatch.setattr(cluster._client, "submit_job", refuse_first)
    job = cluster.launch(JobRequest("late", Entrypoint.from_callable(greet, args=("you",)), NONE))
    assert cluster.wait(job, timeout=PATIENCE).status is JobStatus.SUCCEEDED
    refusals = iter(range(1000))
    with pytest.raises(Temporary, match="--dashboard-agent-listen-port=0"):
        cluster.launch(JobRequest("never", Entrypoint.from_callable(fail), NONE))


def fail() -> None:
    raise LookupError("no such shard")


def test_a_failure_is_told_with_its_output(cluster: RayCluster) -> None:
    job = cluster.launch(JobRequest("fail", Entrypoint.from_callable(fail), NONE))
    with pytest.raises(JobFailed, match="no such shard"):
        cluster.wait(job, fail_on_error=True, timeout=PATIENCE)


def sleep_for_ever() -> None:
    print("asleep", flush=True)
    time.sleep(3600)


def test_a_job_that_is_terminated_ends_inside_of_ray_too(cluster: RayCluster) -> None:
    job = cluster.launch(JobRequest("sleep", Entrypoint.from_callable(sleep_for_ever), NONE))
    inside = open_cluster("ray:auto")
    for line in cluster.logs(job, follow=True):
        if b"asleep" in line.data:
            break
    (own,) = [info.job_id for info in inside.list_jobs() if info.name == "sleep"]
    cluster.terminate(job)
    assert cluster.wait(job, timeout=PATIENCE).status is JobStatus.STOPPED
    assert inside.wait(own, timeout=PATIENCE).status is JobStatus.STOPPED


def test_an_unsupported_request_is_refused(cluster: RayCluster, dashboard: str) -> None:
    with pytest.raises(JobNotFound, match="nobody"):
        cluster.poll("nobody")
    with pytest.raises(InvalidInput, match="JobRequest\\(replicas"):
        cluster.launch_group([], JobGroupConfig("group"))
    with pytest.raises(InvalidInput, match="only a cluster in storage has reservations"):
        cluster.create_reservation(ReservationConfig(NONE))
    with pytest.raises(InvalidInput, match="no Ray dashboard answers"):
        RayCluster("http://127.0.0.1:9")
    assert isinstance(open_cluster(f"ray:{dashboard}"), RayCluster)
