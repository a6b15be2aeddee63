"""Servers in jobs: processes, threads and hosts that find one another, stop, die and move."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from fray.cluster import (
    ClusterResolver,
    Entrypoint,
    JobRequest,
    JobStatus,
    LocalCluster,
    LocalResolver,
    ResourceConfig,
    StorageCluster,
    current_cluster,
)
from fray.rpc import ActorContext, ActorServer
from fray_coordinator.actors.rpc_secrets import rotate_keys
from tests.support.agents import agents
from tests.support.waiting import PATIENCE, wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # agents cannot import the tests

Serve = Callable[..., ActorServer]


class Counter:
    def __init__(self, start: int) -> None:
        self.value = start

    def add(self, number: int) -> int:
        self.value += number
        return self.value


@pytest.fixture(scope="module")
def machine() -> Iterator[LocalCluster]:
    """A local cluster whose jobs are processes."""
    with LocalCluster(max_workers=16) as cluster:
        yield cluster


def job(function: Callable[..., Any], *args: Any, **fields: Any) -> JobRequest:
    return JobRequest("job", Entrypoint.from_callable(function, args=args), ResourceConfig(cpu=0.5), **fields)


def serve_counter(start: int) -> None:
    class Hosted(Counter):
        def pid(self) -> int:
            return os.getpid()

        def die(self) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        def until_the_end(self, began: str) -> str:
            Path(began).touch()
            assert server._ended.wait(PATIENCE)
            time.sleep(0.5)  # a server that does not wait for this call closes now
            return "done"

        def where(self, ctx: ActorContext) -> tuple[str, str]:
            return ctx.job_id, ActorContext.from_environment().job_id

    server = ActorServer(current_cluster())
    server.register("hosted", Hosted(start))
    server.serve()


def test_jobs_and_their_driver_find_one_another(machine: LocalCluster) -> None:
    """A pool travels as an argument; a job calls an actor in another job, and one in the driver, with a new key."""

    def call_both(pool: Any) -> tuple[int, int]:
        resolver = ClusterResolver(current_cluster())
        return pool.add(1), resolver.wait_for_actor("mine", timeout=200).add(1)

    server = ActorServer(machine)
    server.register("mine", Counter(10))
    server.serve_background()
    hosting = machine.launch(job(serve_counter, 20))
    pool = ClusterResolver(machine).wait_for_actor("hosted", timeout=200)
    assert pool.add(0) == 20
    machine.run(lambda core: rotate_keys(core, kept=0))
    assert machine.result(machine.launch(job(call_both, pool))) == (21, 11)
    assert pool.where() == (hosting, hosting)
    [endpoint] = pool.endpoints
    assert {str(endpoint.job_id), str(endpoint.actor_id)} == {str(hosting)}
    array = np.arange(1_000_000)
    assert (pickle.loads(pickle.dumps(pool)).add(array) == array + 21).all()
    server.shutdown()
    machine.terminate(hosting)
    assert machine.wait(hosting).status is JobStatus.STOPPED
    assert pool.size == 0


def test_the_programs_of_the_documents_run_as_they_stand() -> None:
    cluster = LocalCluster()
    resolver = ClusterResolver(cluster)

    class MockInferenceActor:
        def predict(self, ctx: ActorContext, prompts: list[str]) -> list[str]:
            return [f"Response to: {p}" for p in prompts]

    class CounterActor:
        def __init__(self, actor_id: int) -> None:
            self.actor_id = actor_id
            self.count = 0

        def increment(self, ctx: ActorContext) -> int:
            self.count += 1
            return self.actor_id

    server = ActorServer(cluster)
    server.register("inference", MockInferenceActor())
    server.register("counters", CounterActor(1))
    server.serve_background()
    server2 = ActorServer(cluster)
    server2.register("counters", CounterActor(2))
    server2.serve_background()

    pool = resolver.lookup("inference")
    pool.wait_for_size(1)
    assert pool.call().predict(["Hello", "World"]) == ["Response to: Hello", "Response to: World"]
    handle = LocalResolver(cluster).lookup("inference")
    assert handle.predict(["Hello", "World"]) == ["Response to: Hello", "Response to: World"]
    counters = resolver.lookup("counters")
    counters.wait_for_size(2)
    futures = counters.broadcast().increment()
    assert sorted([f.result() for f in futures]) == [1, 2]
    server.shutdown()
    server2.shutdown()
    cluster.close()


def test_jobs_that_are_threads_serve_too() -> None:
    with LocalCluster(use_processes=False) as threads:
        hosting = [threads.launch(job(serve_counter, start)) for start in (1, 2)]
        pool = ClusterResolver(threads).lookup("hosted")
        pool.wait_for_size(2, timeout=200)
        assert sorted(pool.add(0) for _ in range(2)) == [1, 2]
        assert sorted(pool.where() for _ in range(2)) == [(job_id, job_id) for job_id in sorted(hosting)]
        for job_id in hosting:
            threads.terminate(job_id)
        assert [info.status for info in threads.wait(hosting)] == [JobStatus.STOPPED] * 2
        assert pool.size == 0


def test_a_stopped_job_answers_its_running_calls_and_withdraws_its_records(
    machine: LocalCluster, tmp_path: Path
) -> None:
    hosting = machine.launch(job(serve_counter, 0))
    pool = ClusterResolver(machine).wait_for_actor("hosted", timeout=200)
    future = pool.until_the_end.remote(str(tmp_path / "began"))
    wait_until((tmp_path / "began").exists)
    machine.terminate(hosting)
    assert future.result() == "done"
    info = machine.wait(hosting)
    assert info.status is JobStatus.STOPPED
    assert info.attempt == 1
    assert pool.size == 0


@pytest.mark.slow
def test_calls_follow_a_server_that_died_to_its_next_attempt(machine: LocalCluster) -> None:
    hosting = machine.launch(job(serve_counter, 0, max_retries_failure=1))
    pool = ClusterResolver(machine).wait_for_actor("hosted", timeout=200)
    before = pool.pid()
    os.kill(before, signal.SIGKILL)
    handle = pool.call(idempotent=True)
    after = handle.pid()
    assert after != before
    [endpoint] = pool.endpoints
    assert str(endpoint.actor_id) == str(hosting)
    assert machine.poll(hosting).attempt == 2
    machine.terminate(hosting)
    machine.wait(hosting)


@pytest.mark.slow
def test_a_server_whose_host_is_taken_away_moves(tmp_path: Path) -> None:
    root = (tmp_path / "root").as_uri()
    with agents(root, tmp_path / "work", count=2) as both, StorageCluster(root) as cluster:
        hosting = cluster.launch(job(serve_counter, 7))
        pool = ClusterResolver(cluster).wait_for_actor("hosted", timeout=200)
        first = cluster.poll(hosting).agent
        next(agent for agent in both if agent.id == first).end()
        assert pool.call(idempotent=True).add(1) == 8
        info = cluster.poll(hosting)
        assert (info.status, info.attempt, info.failures) == (JobStatus.RUNNING, 2, 0)
        assert info.agent != first
        assert pool.size == 1
