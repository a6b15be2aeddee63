"""Jobs on Iris."""

from __future__ import annotations

import os
import pickle
import sys
import time
from pathlib import Path

import cloudpickle
import pytest

from fray.backends.iris import FrayIrisClient
from fray.backends.iris.cluster import IrisCluster
from fray.client import JobAlreadyExists, JobFailed, wait_all
from fray.cluster import current_replica
from fray.current_client import current_client, set_current_client
from fray.errors import InvalidInput, NoResult
from fray.types import Entrypoint, EnvironmentConfig, JobRequest, JobStatus, ReservationConfig, ResourceConfig
from fray_coordinator.errors import JobNotFound

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # tasks cannot import this module


@pytest.fixture
def client(controller: str) -> FrayIrisClient:
    return FrayIrisClient(controller)


def note(folder: str, text: str) -> None:
    Path(folder, text).touch()


def note_place(folder: str) -> None:
    mine = current_replica()
    note(folder, f"{mine.index} of {mine.count}")


def text_of(client: FrayIrisClient, job_id: str) -> str:
    return "\n".join(line.data.decode() for line in client.cluster.logs(job_id))


def test_a_callable_runs_and_its_output_is_its_log(client: FrayIrisClient, tmp_path: Path) -> None:
    job = client.submit(JobRequest("callable", Entrypoint.from_callable(print, args=("hello from", "iris"))))
    assert job.wait(timeout=200) is JobStatus.SUCCEEDED
    assert "hello from iris" in text_of(client, job.job_id)
    assert any("hello from iris" in line for line in job.logs(max_lines=5))
    assert job.status() is JobStatus.SUCCEEDED
    assert job.job_id in [info.job_id for info in client.cluster.list_jobs()]
    with pytest.raises(NoResult, match="keeps no results"):
        client.cluster.result(job.job_id)
    assert (job.usage(), client.cluster.poll(job.job_id).host) == (None, None)


def test_a_program_runs_with_its_variables(client: FrayIrisClient) -> None:
    request = JobRequest(
        "program",
        Entrypoint.from_binary("bash", ["-c", "echo it is $SIZE"]),
        environment=EnvironmentConfig(env_vars={"SIZE": "large"}),
    )
    job = client.submit(request)
    job.wait(timeout=200)
    assert "it is large" in text_of(client, job.job_id)


def test_all_replicas_run_and_know_their_places(client: FrayIrisClient, tmp_path: Path) -> None:
    gang = JobRequest("gang", Entrypoint.from_callable(note_place, args=(str(tmp_path),)), replicas=3)
    client.submit(gang).wait(timeout=200)
    assert sorted(os.listdir(tmp_path)) == ["0 of 3", "1 of 3", "2 of 3"]


def test_the_log_of_a_replica_that_there_is_not_is_refused(client: FrayIrisClient) -> None:
    job = client.submit(JobRequest("pair", Entrypoint.from_callable(print, args=("printed",)), replicas=2))
    for replica in (-1, 2):
        with pytest.raises(InvalidInput) as raised:
            client.cluster.logs(job.job_id, replica=replica)
        assert (raised.value.field, raised.value.remedy) == ("replica", f"{job.job_id} has replicas 0 to 1")
    job.wait(timeout=200)
    assert {line.replica for line in client.cluster.logs(job.job_id, replica=1)} == {1}


def test_clusters_with_different_workspaces_differ(controller: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    root = controller.replace("http", "iris")
    plain, brings = IrisCluster(root), IrisCluster(root, tmp_path)
    assert plain != brings
    assert {brings, IrisCluster(root, str(tmp_path))} == {brings}


def fail() -> None:
    raise ValueError("the reason")


def test_a_failure_is_raised_after_its_retries(client: FrayIrisClient) -> None:
    job = client.submit(JobRequest("fails", fail, max_retries_failure=1))
    with pytest.raises(JobFailed):
        job.wait(timeout=200)
    assert client.cluster.poll(job.job_id).failures == 2
    assert "the reason" in text_of(client, job.job_id)


def test_an_unfinished_job_is_adopted_by_its_name_and_ends_when_it_is_stopped(client: FrayIrisClient) -> None:
    long = JobRequest("long", Entrypoint.from_callable(time.sleep, args=(3600,)))
    job = client.submit(long)
    assert client.submit(long) == job
    with pytest.raises(JobAlreadyExists) as raised:
        client.submit(long, adopt_existing=False)
    assert raised.value.handle == job
    job.terminate()
    assert wait_all([job], timeout=200, raise_on_failure=False) == [JobStatus.STOPPED]
    again = client.submit(JobRequest("long", Entrypoint.from_callable(print)), adopt_existing=False)
    assert again.wait(timeout=200) is JobStatus.SUCCEEDED


def test_waiting_ends_in_time(client: FrayIrisClient) -> None:
    job = client.submit(JobRequest("slow", Entrypoint.from_callable(time.sleep, args=(3600,))))
    with pytest.raises(TimeoutError, match="1 of 1 jobs have not ended"):
        job.wait(timeout=0.1)
    job.terminate()


def submit_a_child(folder: str) -> None:
    client = current_client()
    assert isinstance(client, FrayIrisClient)
    client.submit(JobRequest("child", Entrypoint.from_callable(note, args=(folder, "child")))).wait(timeout=200)


def test_a_job_has_the_same_client_and_its_own_children(client: FrayIrisClient, tmp_path: Path) -> None:
    job = client.submit(JobRequest("parent", Entrypoint.from_callable(submit_a_child, args=(str(tmp_path),))))
    job.wait(timeout=200)
    assert os.listdir(tmp_path) == ["child"]
    assert f"{job.job_id}/child" in [info.job_id for info in client.cluster.list_jobs()]


def test_it_is_chosen_by_the_variable(controller: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", controller.replace("http", "iris"))
    assert current_client() == FrayIrisClient(controller)
    chosen = FrayIrisClient(controller.replace("127.0.0.1", "localhost"))
    with set_current_client(chosen):
        assert current_client() is chosen


def test_a_client_and_a_handle_can_be_pickled(client: FrayIrisClient) -> None:
    job = client.submit(JobRequest("pickled", Entrypoint.from_callable(print)))
    assert pickle.loads(pickle.dumps(client)) == client
    assert pickle.loads(pickle.dumps(job)) == job
    job.wait(timeout=200)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (JobRequest("x", print, parent="other"), "parent"),
        (JobRequest("x", print, outputs=["a"]), "outputs"),
        (JobRequest("x", print, outage="stop"), "outage"),
        (JobRequest("x", print, replicas=0), "replicas"),
        (JobRequest("x", print, ResourceConfig(labels={"a": "b"})), "resources.labels"),
        (JobRequest("x/y", print), "name"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_that_iris_does_not_have_are_refused_by_name(
    client: FrayIrisClient, request_: JobRequest, field: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        client.submit(request_)
    assert raised.value.field == field


def test_there_are_no_reservations(client: FrayIrisClient) -> None:
    with pytest.raises(InvalidInput, match="only a cluster in storage has reservations"):
        client.cluster.create_reservation(ReservationConfig(ResourceConfig()))


def test_a_job_that_there_is_not(client: FrayIrisClient) -> None:
    for job_id in ("/nobody/nothing", "nothing"):
        with pytest.raises(JobNotFound):
            client.cluster.poll(job_id)
