"""Jobs on a real Ray: the promises of `Client.submit`, `JobHandle` and `Cluster`, and the table of Ray's limits."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
import pytest

from fray.backends.ray import RayClient
from fray.backends.ray.jobs import RayJobs
from fray.client import JobAlreadyExists, JobFailed, JobHandle, wait_all
from fray.cluster import current_cluster, current_replica
from fray.cluster.current_job import current_job
from fray.current_client import current_client
from fray.errors import InvalidInput, JobNotFound, NoOutputs, NoResult
from fray.types import Entrypoint, EnvironmentConfig, JobRequest, JobStatus, ResourceConfig

cloudpickle.register_pickle_by_value(sys.modules[__name__])

PATIENCE = 240.0
"""Seconds for a job on a machine that is busy with others."""

NONE = ResourceConfig(cpu=0)


@pytest.fixture
def client(local_ray: str, request: pytest.FixtureRequest) -> RayClient:
    """A client with a namespace of its own."""
    return RayClient(RayJobs(namespace=f"test-{os.getpid()}-{abs(hash(request.node.name)) % 10**6}"))


def a_request(name: str, call: object, *args: object, **more: object) -> JobRequest:
    fields: dict[str, object] = {"resources": NONE, **more}
    return JobRequest(name, Entrypoint.from_callable(call, args=args), **fields)  # type: ignore[arg-type]


def test_a_callable_runs_and_its_result_is_read(client: RayClient) -> None:
    job = client.submit(a_request("add", lambda a, b: {"sum": a + b}, 2, 3))
    assert job.wait(PATIENCE) is JobStatus.SUCCEEDED
    assert client.cluster.result(job.job_id) == {"sum": 5}
    info = client.cluster.poll(job.job_id)
    assert (info.name, info.attempt, info.host) == ("add", 1, os.uname().nodename)
    assert job.job_id in [other.job_id for other in client.cluster.list_jobs()]


def divide(a: int, b: int) -> float:
    print("dividing")
    return a / b


def test_a_failure_has_the_jobs_exception_and_its_output(client: RayClient) -> None:
    job = client.submit(a_request("divide", divide, 1, 0))
    with pytest.raises(JobFailed, match="division by zero") as raised:
        job.wait(PATIENCE)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    lines = job.logs()  # those of stdout and of stderr come in any order
    assert "dividing" in lines
    assert any(line.startswith("ZeroDivisionError") for line in lines)
    assert job.logs(max_lines=1) == lines[-1:]


def leave_threads_in_ray() -> str:
    """Return while 200 daemon threads wait for ever. One of them may ask for the interpreter at any moment."""
    import threading

    from fray.backends.ray.connection import connected

    ray = connected()
    never = ray.remote(num_cpus=0)(lambda: time.sleep(PATIENCE)).remote()
    for _ in range(200):
        threading.Thread(target=ray.wait, args=([never],), daemon=True).start()
        time.sleep(0.005)
    return "returned"


def test_a_call_that_leaves_threads_waiting_in_ray_has_succeeded(client: RayClient) -> None:
    jobs = [client.submit(a_request(f"threads-{number}", leave_threads_in_ray)) for number in range(4)]
    assert wait_all(jobs, timeout=PATIENCE) == [JobStatus.SUCCEEDED] * 4


def test_a_command_has_its_variables_and_leaves_its_result(client: RayClient) -> None:
    command = "echo $COLOUR $SECRET; printf 42 > $FRAY_RESULT"
    environment = EnvironmentConfig(env_vars={"COLOUR": "green"}, secret_env_vars={"SECRET": "s3cret"})
    entrypoint = Entrypoint.from_binary("sh", ["-c", command])
    job = client.submit(JobRequest("command", entrypoint, NONE, environment=environment))
    assert job.wait(PATIENCE) is JobStatus.SUCCEEDED
    assert job.logs() == ("green s3cret",)
    assert client.cluster.result(job.job_id) == 42


def fail_first(path: str) -> int:
    with open(path, "a", encoding="utf-8") as file:
        file.write("x")
    if os.path.getsize(path) < 3:
        raise OSError("not yet")
    return os.path.getsize(path)


def test_a_failure_is_tried_again_as_often_as_is_allowed(client: RayClient, tmp_path: object) -> None:
    kept = client.submit(a_request("again", fail_first, f"{tmp_path}/again", max_retries_failure=2))
    given_up = client.submit(a_request("once", fail_first, f"{tmp_path}/once", max_retries_failure=1))
    assert kept.wait(PATIENCE) is JobStatus.SUCCEEDED
    assert client.cluster.poll(kept.job_id).failures == 2
    assert given_up.wait(PATIENCE, raise_on_failure=False) is JobStatus.FAILED


def sleep_for_ever() -> None:
    print("asleep", flush=True)
    time.sleep(3600)


def test_a_name_is_adopted_by_every_driver_of_the_namespace(client: RayClient) -> None:
    job = client.submit(a_request("long", sleep_for_ever))
    assert client.submit(a_request("long", divide, 1, 0)) == job
    with pytest.raises(JobAlreadyExists) as raised:
        client.submit(a_request("long", sleep_for_ever), adopt_existing=False)
    assert raised.value.handle == job
    other = RayClient(RayJobs(namespace="another"))
    assert other.submit(a_request("long", divide, 4, 2)).wait(PATIENCE) is JobStatus.SUCCEEDED
    program = """if True:
        import ray
        ray.init(address="auto", namespace="fray", log_to_driver=False)
        from fray.backends.ray import RayClient
        from fray.types import Entrypoint, JobRequest
        print("found", RayClient().submit(JobRequest("long", Entrypoint.from_binary("true"))).job_id)
        """
    address = client.cluster.gcs_address
    environment = {**os.environ, "FRAY_NAMESPACE": client.cluster.namespace, "RAY_ADDRESS": address}
    driver = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert f"found {job.job_id}" in driver.stdout, driver.stderr
    job.terminate()
    assert job.wait(PATIENCE, raise_on_failure=False) is JobStatus.STOPPED


def test_output_is_followed_and_a_job_that_is_stopped_ends(client: RayClient) -> None:
    job = client.submit(a_request("followed", sleep_for_ever))
    lines = client.cluster.logs(job.job_id, follow=True)
    assert next(lines).data == b"asleep"
    assert job.status() is JobStatus.RUNNING
    with pytest.raises(TimeoutError):
        job.wait(0.1)
    job.terminate()
    assert list(lines) == []
    with pytest.raises(JobFailed):
        job.wait(PATIENCE)


def die_once(path: str) -> str:
    """Kill Ray's worker that watches this task, as the loss of its node does."""
    if not os.path.exists(path):
        Path(path).touch()
        runner = Path(f"/proc/{os.getppid()}/stat").read_text()
        worker = int(runner.rpartition(")")[2].split()[1])
        os.kill(worker, signal.SIGKILL)
        time.sleep(3600)
    return "survived"


def test_a_lost_worker_is_a_preemption_and_no_failure(client: RayClient, tmp_path: object) -> None:
    job = client.submit(a_request("lost", die_once, f"{tmp_path}/lost"))
    assert job.wait(PATIENCE) is JobStatus.SUCCEEDED
    info = client.cluster.poll(job.job_id)
    assert (info.attempt, info.preemptions, info.failures) == (2, 1, 0)
    assert client.cluster.result(job.job_id) == "survived"
    given_up = client.submit(a_request("lost", die_once, f"{tmp_path}/once", max_retries_preemption=0))
    with pytest.raises(JobFailed, match="max_retries_preemption=0"):
        given_up.wait(PATIENCE)


def who_am_i() -> tuple[object, ...]:
    replica = current_replica()
    mine = current_job()
    assert mine is not None
    return replica.index, replica.count, len(replica.workers), replica.coordinator, mine.cluster


def test_a_gang_has_all_of_its_replicas_and_a_place_to_meet(client: RayClient) -> None:
    job = client.submit(a_request("gang", who_am_i, replicas=4, resources=ResourceConfig(cpu=0.5)))
    job.wait(PATIENCE)
    results = client.cluster.results(job.job_id)
    assert [result[:3] for result in results] == [(number, 4, 4) for number in range(4)]
    (where,) = {result[3] for result in results}
    assert where.rpartition(":")[0] == client.cluster.gcs_address.rpartition(":")[0]
    assert {result[4] for result in results} == {"ray:auto"}
    assert client.cluster.result(job.job_id) == results[0]


def test_a_gang_starts_whole_or_not_at_all(client: RayClient) -> None:
    large = client.submit(
        a_request("large", who_am_i, replicas=3, resources=ResourceConfig(cpu=2), pending_timeout=2.0)
    )
    apart = client.submit(a_request("apart", who_am_i, replicas=2, spread=True, pending_timeout=2.0))
    with pytest.raises(JobFailed, match="pending_timeout of 2 s"):
        large.wait(PATIENCE)
    assert apart.wait(PATIENCE, raise_on_failure=False) is JobStatus.STOPPED
    assert client.cluster.poll(large.job_id).start_time is None


def fail_as_one() -> None:
    if current_replica().index == 1:
        raise KeyError("one")
    time.sleep(3600)


def test_a_gang_ends_with_the_first_replica_that_fails(client: RayClient) -> None:
    job = client.submit(a_request("one-fails", fail_as_one, replicas=2, grace=1.0))
    with pytest.raises(JobFailed, match=r"replica 1 on .*KeyError"):
        job.wait(PATIENCE)


def launch_children() -> tuple[str, str, str]:
    client = current_client()
    child = client.submit(JobRequest("child", Entrypoint.from_callable(sleep_for_ever), NONE))
    program = "from fray import current_client; print(repr(current_client()))"
    inner = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return child.job_id, repr(client), inner.strip()


def test_a_jobs_children_are_on_the_same_ray_and_end_with_it(client: RayClient) -> None:
    job = client.submit(a_request("parent", launch_children))
    job.wait(PATIENCE)
    child, inside, deeper = client.cluster.result(job.job_id)
    assert inside == deeper == "RayClient(RayJobs('ray:auto'))"
    info = client.cluster.wait(child, timeout=PATIENCE)
    assert (info.status, info.parent, info.namespace) == (JobStatus.STOPPED, job.job_id, client.cluster.namespace)


def test_many_are_waited_for_together_also_by_coroutines(client: RayClient) -> None:
    jobs = [client.submit(a_request(f"one-{n}", divide, n, 1)) for n in range(3)]
    assert wait_all(jobs, timeout=PATIENCE) == [JobStatus.SUCCEEDED] * 3
    assert asyncio.run(client.cluster.result_async(jobs[2].job_id, timeout=PATIENCE)) == 2.0
    handle: JobHandle = cloudpickle.loads(cloudpickle.dumps(jobs[0]))
    assert handle == jobs[0]
    assert handle.status() is JobStatus.SUCCEEDED


def test_the_time_of_an_attempt_is_limited(client: RayClient) -> None:
    job = client.submit(a_request("slow", sleep_for_ever, timeout=1.0, grace=1.0))
    with pytest.raises(JobFailed, match="timeout"):
        job.wait(PATIENCE)


def test_a_wait_for_a_job_that_no_node_has_room_for_logs_a_warning(
    client: RayClient, caplog: pytest.LogCaptureFixture
) -> None:
    job = client.submit(a_request("large", divide, 1, 1, resources=ResourceConfig(cpu=1000)))
    with pytest.raises(TimeoutError):
        job.wait(0.1)
    assert f"job {job.job_id}: no node of this Ray has CPU 1000 at once" in caplog.text
    job.terminate()
    client.create_actor(dict, name="large", resources=ResourceConfig(cpu=1000))
    assert "actor 'large': no node of this Ray has CPU 1000 at once" in caplog.text


def test_a_missing_job_result_or_output_is_an_error(client: RayClient) -> None:
    with pytest.raises(JobNotFound, match="nobody"):
        client.cluster.poll("nobody")
    job = client.submit(JobRequest("true", Entrypoint.from_binary("true"), NONE))
    job.wait(PATIENCE)
    with pytest.raises(NoResult, match="no result"):
        client.cluster.result(job.job_id)
    with pytest.raises(NoOutputs, match="storage"):
        client.cluster.pull(job.job_id, ".")


def test_the_root_names_this_ray(client: RayClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fray.cluster.current._clusters", {})  # as in a program that has just begun
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", "ray:auto")
    monkeypatch.setenv("FRAY_NAMESPACE", client.cluster.namespace)
    assert isinstance(current_cluster(), RayJobs)
    assert current_client() == client


@pytest.mark.parametrize(
    ("field", "asked", "remedy"),
    [
        ("resources.regions", {"resources": ResourceConfig(regions=["us-east5"])}, "does not know the regions"),
        ("resources.zone", {"resources": ResourceConfig(zone="us-east5-a")}, "does not know the zones"),
        ("resources.labels", {"resources": ResourceConfig(labels={"disk": "ssd"})}, "labels"),
        ("resources.hard_cpu", {"resources": ResourceConfig(hard_cpu=True)}, "does not limit them"),
        ("resources.disk", {"resources": ResourceConfig(disk="5g")}, "does not count disk"),
        ("resources.preemptible", {"resources": ResourceConfig(preemptible=False)}, "head_node"),
        ("environment.docker_image", {"environment": EnvironmentConfig(docker_image="python:3.11")}, "image"),
        ("environment.extras", {"environment": EnvironmentConfig(extras=["gpu"])}, "pip_packages"),
        ("pool", {"pool": "batch"}, "one pool"),
        ("priority", {"priority": 10}, "order of arrival"),
        ("same", {"same": "zone", "replicas": 2}, "does not know the zones"),
        ("ports", {"ports": ["http"]}, "cluster in storage"),
        ("outputs", {"outputs": ["checkpoints/**"]}, "return their paths"),
        ("outage", {"outage": "stop"}, "cluster in storage"),
    ],
)
def test_options_that_ray_does_not_have_are_refused_with_a_remedy(
    client: RayClient, field: str, asked: dict[str, object], remedy: str
) -> None:
    before = len(client.cluster.list_jobs())
    with pytest.raises(InvalidInput, match=remedy) as raised:
        client.submit(a_request("refused", divide, **asked))
    assert str(raised.value).startswith(field)
    assert len(client.cluster.list_jobs()) == before
