"""Jobs: submit, wait, follow, read results; through a client and through a cluster."""

from __future__ import annotations

from typing import Any, assert_type

import fray
from fray import Client, Cluster, JobHandle, JobInfo, JobRequest, JobStatus, StorageClient
from fray.cluster import CpuConfig, JobGroupConfig, LocalCluster, StorageCluster, current_cluster, open_cluster
from fray.types import BinaryEntrypoint, CallableEntrypoint, Entrypoint, EnvironmentConfig, HealthCheck, JobId


def train(shard: int, rate: float = 0.1) -> float:
    return shard * rate


def submit(client: Client) -> list[JobStatus]:
    requests = [JobRequest(f"train-{shard}", Entrypoint.from_callable(train, args=[shard])) for shard in range(3)]
    jobs = [client.submit(request) for request in requests]
    assert_type(jobs, list[JobHandle])
    for job in jobs:
        assert_type(job.job_id, JobId)
        assert_type(job.status(), JobStatus)
        assert_type(job.logs(max_lines=10), tuple[str, ...])
    try:
        client.submit(requests[0], adopt_existing=False)
    except fray.JobAlreadyExists as error:
        print(error.job_name, error.handle)
    except fray.JobFailed as error:
        print(error.job_id, error.failed_status)
    jobs[0].terminate()
    assert_type(jobs[1].wait(timeout=60, raise_on_failure=False), JobStatus)
    assert_type(client.cluster, Cluster)
    return fray.wait_all(jobs)


def by_id_as_text(cluster: StorageCluster, job: str, others: list[str]) -> JobHandle:
    assert_type(cluster.wait(job), JobInfo)
    assert_type(cluster.wait(others), list[JobInfo])
    assert_type(cluster.wait(job_ids=job), JobInfo)
    assert_type(cluster.poll(job).job_id, JobId)
    cluster.result(job)
    cluster.terminate(job)
    return JobHandle(cluster, job)


def entrypoints() -> None:
    assert_type(Entrypoint.from_callable(train, args=(1,), kwargs={"rate": 0.5}), CallableEntrypoint)
    assert_type(Entrypoint.from_binary("echo", ["hello"]), BinaryEntrypoint)
    assert_type(Entrypoint.from_binary("echo").binary_entrypoint, BinaryEntrypoint | None)


def every_field(resources: fray.ResourceConfig) -> JobRequest:
    return JobRequest(
        name="serve",
        entrypoint=Entrypoint.from_binary("python", ["-m", "http.server"]),
        resources=resources,
        environment=EnvironmentConfig(env_vars={"A": "1"}, secret_env_vars={"KEY": "secret"}),
        max_retries_failure=3,
        max_retries_preemption=10,
        timeout=3600,
        pending_timeout=60.5,
        grace=5,
        priority=7,
        namespace="lab",
        detached=True,
        pool="default",
        id="monday",
        health_check=HealthCheck(port=8000, path="/healthz"),
    )


def launch(cluster: StorageCluster) -> Any:
    first = cluster.launch(JobRequest("one", Entrypoint.from_callable(train, args=[1])))
    assert_type(first, JobId)
    others = cluster.launch_group([every_field(fray.ResourceConfig())], JobGroupConfig("group"))
    assert_type(others, list[JobId])
    assert_type(cluster.wait(first), JobInfo)
    assert_type(cluster.wait(others, timeout=60), list[JobInfo])
    assert_type(cluster.poll(first), JobInfo)
    assert_type(cluster.list_jobs(), list[JobInfo])
    for line in cluster.logs(first, follow=True):
        print(line)
    cluster.terminate(first)
    return cluster.result(first, timeout=60)


async def on_an_event_loop(cluster: Cluster, first: JobId, others: list[JobId]) -> Any:
    assert_type(await cluster.wait_async(first), JobInfo)
    assert_type(await cluster.wait_async(others, timeout=60), list[JobInfo])
    async for line in cluster.logs(first, follow=True):
        assert_type(line.complete, bool)
    return await cluster.result_async(first, timeout=60)


def in_a_job() -> None:
    cluster = current_cluster()
    info = cluster.poll(cluster.launch(JobRequest("child", lambda: None)))
    assert_type(info.status, JobStatus)
    assert_type(info.status.finished(), bool)
    assert_type(info.error_message, str | None)
    assert_type(info.attempt, int)


def clusters() -> list[Cluster]:
    with LocalCluster() as local, open_cluster("gs://bucket/fray") as remote:
        return [local, remote]


def clients() -> Client:
    with fray.set_current_client(StorageClient("gs://bucket/fray")) as client:
        assert_type(client, StorageClient)
        assert_type(fray.current_client(), Client)
        print(CpuConfig())
        return client
