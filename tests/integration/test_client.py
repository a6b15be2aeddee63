"""The client on threads, and on a root with two agents: the same programs give the same answers."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator

import pytest

from fray.client import StorageClient
from fray.local_backend import LocalClient
from fray.types import Entrypoint, JobRequest
from tests.behaviour.clients import *  # noqa: F403
from tests.behaviour.clients import call
from tests.support.agents import agents, on_cluster
from tests.support.waiting import PATIENCE, wait_until


@pytest.fixture(scope="module", params=["threads", pytest.param("agents", marks=pytest.mark.slow)])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageClient]:
    if request.param == "threads":
        client = LocalClient()
        yield client
        client.shutdown(wait=False)
        return
    place = tmp_path_factory.mktemp("cluster")
    on_cluster(place / "root", lambda core: core.store.learn_clock())
    with agents(str(place / "root"), place / "work", count=2, cores=4):
        yield StorageClient(str(place / "root"))


def test_a_jobs_usage_is_reported_while_it_runs_and_after_its_end(client: StorageClient) -> None:
    reads = "import time; held = b'x' * 50_000_000; time.sleep(600)"
    job = client.submit(JobRequest("reads", Entrypoint.from_binary(sys.executable, ["-c", reads])))
    wait_until(lambda: (used := job.usage()) is not None and used.memory > 50_000_000)
    job.terminate()
    job.wait(timeout=PATIENCE, raise_on_failure=False)
    used = job.usage()
    assert used is not None
    assert used == client.cluster.poll(job.job_id).exit.usage  # type: ignore[union-attr]
    assert used.memory_peak > 50_000_000
    assert used.cpu_seconds > 0


def test_the_usage_of_a_job_is_unknown_before_it_runs() -> None:
    job = StorageClient(f"memory://{uuid.uuid4()}").submit(call("waits", print))
    assert job.usage() is None
