"""Concurrency on a private cluster: slots bound computing jobs, but never a job that another one waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fray.cluster import (
    ClusterResolver,
    Entrypoint,
    JobRequest,
    JobStatus,
    LocalCluster,
    ResourceConfig,
    current_cluster as current,
)
from fray.pool import WorkerPool
from fray.rpc import ActorServer
from fray_coordinator.core import Core
from fray_coordinator.jobs.lookup import read_job, refreshed_agents
from fray_coordinator.jobs.why_waiting import why_waiting


@pytest.fixture(
    scope="module",
    params=[pytest.param(True, id="processes", marks=pytest.mark.slow), pytest.param(False, id="threads")],
)
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Two slots."""
    with LocalCluster(max_workers=2, use_processes=request.param) as opened:
        yield opened


def call(fn: Callable[..., Any], *args: Any, name: str = "job", **fields: Any) -> JobRequest:
    return JobRequest(name, Entrypoint.from_callable(fn, args), **fields)


def descend(depth: int) -> int:
    """Wait for a child that does the same. The last but one waits for two."""
    if depth == 0:
        return 1
    here, count = current(), 2 if depth == 1 else 1
    children = here.launch_many([JobRequest("child", Entrypoint.from_callable(descend, (depth - 1,)))] * count)
    return sum(here.result(child) for child in children)


def test_jobs_that_wait_for_children_of_their_own_have_room_for_them(cluster: LocalCluster) -> None:
    steps = cluster.launch_many([call(descend, 2, name=f"step-{number}") for number in range(3)])
    assert [cluster.result(step, timeout=200) for step in steps] == [2, 2, 2]


def test_a_child_that_ended_or_waits_to_be_tried_again_does_not_keep_the_next_from_its_room(
    cluster: LocalCluster,
) -> None:
    def parent() -> list[JobStatus]:
        def fail() -> None:
            raise ValueError

        here = current()
        first = JobRequest("a", Entrypoint.from_callable(fail), max_retries_failure=1)
        return [info.status for info in here.wait([here.launch(first), here.launch(JobRequest("b", lambda: None))])]

    steps = cluster.launch_many([call(parent) for _ in range(2)])
    ends = [JobStatus.FAILED, JobStatus.SUCCEEDED]
    assert [cluster.result(step, timeout=200) for step in steps] == [ends, ends]


async def why_it_waits(core: Core, job: str) -> str:
    """The reason why the job waits, after its agent has filled both slots."""
    while True:
        (agent,) = [agent.record for agent in await refreshed_agents(core) if not agent.record.driver]
        if agent.free.cpu == 0:
            return why_waiting((await read_job(core, job)).record, [agent], core.now())
        await core.clock.sleep(0.05)


class Server:
    def number(self) -> int:
        return 1


def serve() -> None:
    server = ActorServer(current())
    server.register("servers", Server())
    server.serve()


def test_servers_wait_for_calls_and_take_no_room(cluster: LocalCluster) -> None:
    jobs = cluster.launch_many([call(serve, name=f"server-{number}") for number in range(3)])
    pool = ClusterResolver(cluster).lookup("servers")
    pool.wait_for_size(3, timeout=200)
    assert sum(future.result() for future in pool.broadcast().number()) == 3
    assert cluster.result(cluster.launch(call(lambda: "room"))) == "room"
    for job in jobs:
        cluster.terminate(job)
    cluster.wait(jobs)


def test_a_pool_has_the_workers_that_it_asks_for(cluster: LocalCluster) -> None:
    with WorkerPool(cluster, 3, ResourceConfig(cpu=2)) as pool:
        pool.wait_for_workers(timeout=200)
        assert [future.result() for future in pool.map(abs, [-1, 2])] == [1, 2]


def test_jobs_that_compute_keep_to_the_slots(cluster: LocalCluster) -> None:
    first = cluster.launch_many([JobRequest("sleep", Entrypoint.from_binary("sleep", ["600"])) for _ in range(2)])
    late = cluster.launch(call(lambda: None))
    why = cluster.run(lambda core: why_it_waits(core, late))
    assert " jobs there; cpu: 1 core wanted, 0 free)" in why
    for job in first:
        cluster.terminate(job)
    assert cluster.wait(late, timeout=200).status is JobStatus.SUCCEEDED


def test_threads_have_no_limit_of_their_own() -> None:
    together = threading.Barrier(40)
    with LocalCluster(use_processes=False) as threads:
        jobs = threads.launch_many([call(lambda: together.wait(200) and None) for _ in range(40)])
        assert {info.status for info in threads.wait(jobs, timeout=200)} == {JobStatus.SUCCEEDED}
