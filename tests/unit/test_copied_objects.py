"""Older objects that somebody puts back, and another cluster's objects that come in: agents go on, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fray_agents.agent.agent import Agent, AgentOptions
from fray_coordinator.core import Core
from fray_coordinator.jobs.lookup import read_job
from fray_coordinator.jobs.submission import submit
from fray_coordinator.jobs.waiting import wait_for
from fray_coordinator.protocol.transitions import Status
from fray_coordinator.store.interface import ANY
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import CLUSTER_KEY, AgentKeys, CoordinatorKeys, JobKeys
from fray_layouts.records import Resources
from fray_layouts.spec_parsing import parse_spec
from tests.support.fake_tasks import fake
from tests.support.scripted_agents import ScriptedAgent, launch
from tests.support.virtual import Cluster

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)


@asynccontextmanager
async def agent_at(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Agent]:
    options = AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=fake(tmp_path, {"job": 100.0, "strange": 1.0}))
    agent = Agent(await cluster.core(local=False), options)
    running = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def put_back(core: Core, objects: dict[str, bytes]) -> None:
    for key, data in objects.items():
        await core.store.put(key, data, ANY)


@pytest.mark.parametrize("area", [AgentKeys.area, PendingKey.area, CoordinatorKeys.area])
async def test_what_follows_from_jobs_and_agents_heals_when_it_is_put_back(
    cluster: Cluster, tmp_path: Path, area: str
) -> None:
    user = await cluster.core(local=False)
    async with agent_at(cluster, tmp_path) as agent:
        job = (await launch(user)).id
        await asyncio.sleep(1)
        old = {key: found.data for key, found in cluster.contents.objects.items() if key.startswith(area)}
        assert old
        await asyncio.sleep(40)
        await put_back(user, old)
        ended = (await wait_for(user, [job], 600.0))[job]
        assert (ended.status, ended.attempt) == (Status.SUCCEEDED, 1)
        assert not agent.member.fenced.is_set()
        await asyncio.sleep(3 * user.settings.repair_interval)
        assert cluster.keys(PendingKey.area) == []


async def test_a_job_whose_record_is_put_back_after_its_end_runs_again_and_ends(
    cluster: Cluster, tmp_path: Path
) -> None:
    user = await cluster.core(local=False)
    async with agent_at(cluster, tmp_path):
        job = (await launch(user)).id
        await asyncio.sleep(50)
        old = cluster.contents.objects[JobKeys.key(job)].data
        await wait_for(user, [job], 600.0)
        await put_back(user, {JobKeys.key(job): old})
        assert (await read_job(user, job)).record.status == Status.RUNNING
        await asyncio.sleep(600)
        ended = (await read_job(user, job)).record
        assert (ended.status, ended.attempt, ended.failures) == (Status.SUCCEEDED, 2, 0)


async def test_another_clusters_objects_disturb_no_job_and_its_jobs_end(cluster: Cluster, tmp_path: Path) -> None:
    elsewhere = Cluster()
    theirs = await elsewhere.core()
    stranger = ScriptedAgent(theirs, "stranger")
    await stranger.beat()
    strange = [parse_spec({"name": "strange", "entrypoint": {"command": ["true"]}}) for _ in range(2)]
    strangers = [made.job.id for made in await submit(theirs, strange)]
    await stranger.claim()
    user = await cluster.core(local=False)
    async with agent_at(cluster, tmp_path) as agent:
        job = (await launch(user)).id
        await asyncio.sleep(10)
        objects = {key: found.data for key, found in elsewhere.contents.objects.items() if key != CLUSTER_KEY}
        await put_back(user, objects)
        ended = await wait_for(user, [job, *strangers], 900.0)
        assert {found.status for found in ended.values()} == {Status.SUCCEEDED}
        assert ended[job].attempt == 1
        assert not agent.member.fenced.is_set()
