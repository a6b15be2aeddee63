"""Actors on Iris."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from fray.actor import ActorUnavailableError, CallInterrupted, current_actor, idempotent
from fray.backends.iris import FrayIrisClient
from fray.current_client import current_client
from fray.errors import ActorNotFoundError, InvalidInput
from fray.types import ActorConfig, Entrypoint, JobRequest, JobStatus
from fray_coordinator.errors import NameTaken
from tests.support.waiting import wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # tasks cannot import this module


class Counter:
    def __init__(self, start: int = 0) -> None:
        self.value = start

    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @idempotent
    def read(self) -> int:
        return self.value

    async def later(self) -> int:
        return self.value

    def place(self) -> tuple[int, str]:
        mine = current_actor()
        return mine.index, mine.group_name

    def fail(self) -> None:
        raise KeyError("missing")

    def end_itself(self) -> None:
        current_actor().shutdown_event.set()

    def die(self) -> None:
        os._exit(9)


class Broken:
    def __init__(self) -> None:
        raise RuntimeError("no such model")


@pytest.fixture
def client(controller: str) -> Any:
    with FrayIrisClient(controller) as client:
        yield client


def test_an_actor_answers_calls_in_order(client: FrayIrisClient) -> None:
    with client.create_actor(Counter, 10, name="counter") as counter:
        assert counter.add(1) == 11
        futures = [counter.add.remote(1) for _ in range(20)]
        assert [future.result(timeout=200) for future in futures] == list(range(12, 32))
        assert counter.later() == 31
        with pytest.raises(KeyError, match="missing"):
            counter.fail()
        with pytest.raises(AttributeError):
            counter.nothing()
        assert counter._status() is JobStatus.RUNNING
    wait_until(lambda: counter._status() is JobStatus.STOPPED)
    with pytest.raises(ActorUnavailableError):
        counter.add(1)


def test_a_group_is_found_as_it_comes_up_and_each_knows_its_place(client: FrayIrisClient) -> None:
    with client.create_actor_group(Counter, name="workers", count=2) as group:
        assert len(group.wait_ready(timeout=200)) == 2
        assert [handle.place() for handle in group.handles] == [(0, "workers"), (1, "workers")]
        assert group.ready_count == 2
        assert group.discover_new() == []
        assert not group.is_done()
    wait_until(group.is_done)


def add_from_a_job(counter: Any, file: str) -> None:
    Path(file).write_text(str(counter.add(5)))


def test_a_handle_works_in_other_jobs(client: FrayIrisClient, tmp_path: Path) -> None:
    with client.create_actor(Counter, name="shared") as counter:
        assert pickle.loads(pickle.dumps(counter)) == counter
        call = Entrypoint.from_callable(add_from_a_job, args=(counter, str(tmp_path / "sum")))
        client.submit(JobRequest("caller", call)).wait(timeout=200)
        assert (tmp_path / "sum").read_text() == "5"
        assert counter.add(1) == 6


def test_an_actor_that_cannot_be_made_ends_for_good(client: FrayIrisClient) -> None:
    group = client.create_actor_group(Broken, name="broken", count=1)
    with pytest.raises(ActorUnavailableError, match="only 0 of the 1 actors"):
        group.wait_ready(timeout=200)
    with pytest.raises(ActorUnavailableError, match="has ended"):
        group.handles[0].add(1)


def test_an_actor_whose_process_died_starts_anew(client: FrayIrisClient) -> None:
    with client.create_actor_group(Counter, 3, name="mortal", count=1) as group:
        counter = group.handles[0]
        assert counter.add(1) == 4
        with pytest.raises(CallInterrupted, match="may have been running"):
            counter.die()
        assert counter.read() == 3
        assert client.cluster.poll(group.jobs[0].job_id).failures == 1


def test_a_detached_actor_outlives_its_client_and_is_found_by_name(controller: str) -> None:
    with FrayIrisClient(controller) as first:
        first.create_actor(Counter, 7, name="lasting", actor_config=ActorConfig(detached=True)).add(1)
    second = FrayIrisClient(controller)
    found = second.get_actor("lasting")
    assert found.add(1) == 9
    with pytest.raises(NameTaken):
        second.create_actor(Counter, name="lasting", actor_config=ActorConfig(detached=True))
    found.end_itself()
    wait_until(lambda: found._status().finished())
    with pytest.raises(ActorNotFoundError):
        second.get_actor("lasting")


LEAVES = """
import os, sys
from fray.backends.iris import FrayIrisClient
group = FrayIrisClient(sys.argv[1]).create_actor_group(dict, name="left", count=1)
group.wait_ready(timeout=200)
print(group.jobs[0].job_id, flush=True)
os._exit(1)
"""
"""A program outside of jobs that dies."""


def leave(path: str) -> None:
    """A job that dies."""
    group = current_client().create_actor_group(Counter, name="orphan", count=1)
    group.wait_ready(timeout=200)
    Path(path).write_text(group.jobs[0].job_id)
    os._exit(1)


def test_an_actor_ends_with_the_job_that_created_it_but_not_with_a_program_outside(
    client: FrayIrisClient, controller: str, tmp_path: Path
) -> None:
    ran = subprocess.run([sys.executable, "-c", LEAVES, controller], stdout=subprocess.PIPE, text=True, check=False)
    outside = ran.stdout.strip()
    job = client.submit(JobRequest("leaves", Entrypoint.from_callable(leave, args=(str(tmp_path / "actor"),))))
    job.wait(timeout=200, raise_on_failure=False)
    inside = (tmp_path / "actor").read_text()
    wait_until(lambda: client.cluster.poll(inside).status.finished())
    assert client.cluster.poll(outside).status is JobStatus.RUNNING
    client.cluster.terminate(outside)


def test_options_that_iris_does_not_have_are_refused(client: FrayIrisClient) -> None:
    with pytest.raises(InvalidInput, match="create_actor, which starts one there"):
        client.host_actor(Counter, name="here")
    with (
        client.create_actor(Counter, name="streams") as counter,
        pytest.raises(InvalidInput, match="does not support generators"),
    ):
        next(iter(counter.add.stream(1)))
