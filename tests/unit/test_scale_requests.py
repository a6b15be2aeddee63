"""The requests for each job on a cluster with very many jobs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.scale.fleet import Fleet
from benchmarks.scale.loop import LoopClock, ManyTimersLoop
from benchmarks.scale.services import GCS
from benchmarks.scale.storage import Storage
from fray_agents.agent.agent import Agent, AgentOptions
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.jobs import notifications
from fray_coordinator.jobs.submission import submit
from fray_coordinator.jobs.waiting import wait_for
from fray_layouts import object_keys
from fray_layouts.records import Resources
from fray_layouts.spec_parsing import parse_spec
from tests.support.fake_tasks import fake
from tests.support.virtual import Cluster

HOST = Resources(cpu=1000, memory=2**33, disk=2**33)


@pytest.mark.parametrize("seconds", [0.1, 60.0])
async def test_the_entry_of_a_job_is_deleted_once_however_long_it_runs(
    cluster: Cluster, tmp_path: Path, seconds: float
) -> None:
    core = await cluster.core(local=False)
    options = AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=fake(tmp_path, {"job": seconds}))
    agent = Agent(core, options)
    running = asyncio.create_task(agent.run())
    (submitted,) = await submit(core, [parse_spec({"name": "job", "entrypoint": {"command": ["true"]}})])
    await wait_for(core, [submitted.job.id])
    await asyncio.sleep(60)
    agent.terminate()
    await running
    deleted = [key for verb, key in cluster.connections[0].asked if verb == "delete"]
    assert len(deleted) == 1
    assert deleted[0].startswith("pending/")


async def test_an_entry_that_fits_is_found_behind_a_page_of_entries_that_do_not(
    cluster: Cluster, tmp_path: Path
) -> None:
    core = await cluster.core(local=False)
    wide = {"name": "wide", "entrypoint": {"command": ["true"]}, "resources": {"cpu": 64}}
    await submit(core, [parse_spec(wide)] * 1001)
    await asyncio.sleep(0.01)
    (wanted,) = await submit(core, [parse_spec({"name": "job", "entrypoint": {"command": ["true"]}})])
    options = AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=fake(tmp_path, {"job": 1.0}))
    running = asyncio.create_task((agent := Agent(core, options)).run())
    await asyncio.wait_for(wait_for(core, [wanted.job.id]), 30)
    agent.terminate()
    await running


def test_few_of_many_concurrent_ringers_ring_and_the_others_see_that(tmp_path: Path) -> None:
    loop = ManyTimersLoop()
    fleet = Fleet(Storage(GCS, LoopClock(loop), 1), tmp_path, 1)
    bell = object_keys.PoolKeys.doorbell("default")

    async def main() -> float:
        cores = [(await fleet.core())[0] for _ in range(50)]
        await notifications.ring(cores[0], "default")
        fleet.storage.forget()
        begun = loop.time()
        await asyncio.gather(*(notifications.ring(core, "default") for core in cores))
        return loop.time() - begun

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        seconds = runner.run(main())
    assert bell in fleet.storage.contents.objects
    assert seconds < 5.0
    assert sum(fleet.storage.asked["pools", "writes"].values()) < 150


async def test_a_lone_ring_is_one_request(cluster: Cluster) -> None:
    core = await cluster.core(local=False)
    cluster.connections[-1].asked.clear()
    await notifications.ring(core, "default")
    assert cluster.connections[-1].asked == [("put", object_keys.PoolKeys.doorbell("default"))]


async def test_a_bell_that_cannot_be_rung_is_told_of(cluster: Cluster) -> None:
    core = await cluster.core(local=False)
    cluster.cut()
    with pytest.raises(StoreUnavailable):
        await notifications.ring(core, "default")
