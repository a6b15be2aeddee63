"""How an agent builds the environments that its pool names; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.environments.cache import HostUnfit
from fray_agents.environments.prepare import Prepared, Preparer
from fray_coordinator.core import Core
from fray_coordinator.jobs.pools import add_environment
from fray_coordinator.jobs.waiting import wait_for
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import PoolKeys
from fray_layouts.records import JobRecord, Resources, Software
from fray_layouts.spec import EnvironmentSpec
from fray_runtime.pickling import OWN_PYTHON
from tests.support.fake_tasks import fake
from tests.support.scripted_agents import agent_now, job_now, launch
from tests.support.virtual import Cluster

HOST = Resources(cpu=1000, memory=2**33, disk=2**33)
WITH_UV = Software(python=OWN_PYTHON, pythons=[OWN_PYTHON])
POOL = PoolKeys.record("default")
READS = ("get", "get_if_changed")


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of prepared environments. A package "broken" cannot be installed, a package "slow" never finishes."""
    order: list[str] = []

    async def prepare(
        self: Preparer, job: JobRecord, directory: Path, held: AsyncExitStack, tell: Callable[[str], None]
    ) -> Prepared:
        order.append(" ".join(job.spec.environment.pip_packages) or job.spec.environment.docker_image or job.spec.name)
        if order[-1] == "broken":
            raise HostUnfit("the index does not answer")
        await asyncio.sleep(1e9 if order[-1] == "slow" else 100)
        return Prepared()

    monkeypatch.setattr(Preparer, "prepare", prepare)
    return order


@asynccontextmanager
async def an_agent(core: Core, folder: Path, **options: Any) -> AsyncIterator[tuple[Agent, asyncio.Task[Any]]]:
    start = fake(folder, {"job": 5.0})
    software = {"software": WITH_UV, **options}
    agent = Agent(core, AgentOptions(capacity=HOST, work_dir=folder, start_task=start, **software))
    life = asyncio.create_task(agent.run())
    try:
        yield agent, life
    finally:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)


async def name(user: Core, *packages: str) -> None:
    for package in packages:
        await add_environment(user, "default", EnvironmentSpec(pip_packages=[package]))


async def test_an_agent_builds_one_after_another_and_then_claims(
    cluster: Cluster, tmp_path: Path, prepared: list[str]
) -> None:
    user = await cluster.core()
    await name(user, "first", "second")
    job = await launch(user)
    async with an_agent(await cluster.core(), tmp_path) as (agent, _):
        await asyncio.sleep(150)
        assert prepared == ["first", "second"]
        now = await agent_now(user, agent.id)
        assert now.problem == "claims nothing yet: builds the pool's environments, 2 of 2"
        assert (now.holdings, (await job_now(user, job.id)).status) == ({}, "pending")
        await wait_for(user, [job.id], timeout=1000)
        assert prepared == ["first", "second", "job"]
        assert (await agent_now(user, agent.id)).problem == ""


async def test_an_environment_that_cannot_be_built_is_reported_and_the_agent_works_on(
    cluster: Cluster, tmp_path: Path, prepared: list[str]
) -> None:
    user = await cluster.core()
    await name(user, "broken", "second")
    job = await launch(user)
    async with an_agent(await cluster.core(), tmp_path) as (agent, _):
        await wait_for(user, [job.id], timeout=1000)
        assert prepared == ["broken", "second", "job"]
        problem = (await agent_now(user, agent.id)).problem
        assert "environment 1 of 2 of pool default is not built" in problem
        assert "the index does not answer" in problem


@pytest.mark.parametrize("data", [b"hello", b'{"environments":[{"pip_packages":5}]}'])
async def test_a_record_that_cannot_be_read_is_told_and_keeps_the_agent_from_nothing(
    cluster: Cluster, tmp_path: Path, prepared: list[str], data: bytes
) -> None:
    user = await cluster.core()
    await user.store.put(POOL, data, ANY)
    job = await launch(user)
    async with an_agent(await cluster.core(), tmp_path) as (agent, _):
        await wait_for(user, [job.id], timeout=1000)
        assert prepared == ["job"]
        assert POOL in (await agent_now(user, agent.id)).problem


async def test_a_host_without_uv_and_containers_builds_nothing_that_needs_them(
    cluster: Cluster, tmp_path: Path, prepared: list[str]
) -> None:
    user = await cluster.core()
    await name(user, "first")
    await add_environment(user, "default", EnvironmentSpec(docker_image="image"))
    job = await launch(user)
    async with an_agent(await cluster.core(), tmp_path, software=Software(python=OWN_PYTHON)) as (agent, _):
        await wait_for(user, [job.id], timeout=1000)
        assert prepared == ["job"]
        assert (await agent_now(user, agent.id)).problem == ""


async def test_an_agent_that_is_to_leave_while_it_builds_leaves_at_once(
    cluster: Cluster, tmp_path: Path, prepared: list[str]
) -> None:
    user = await cluster.core()
    await name(user, "slow")
    async with an_agent(await cluster.core(), tmp_path) as (agent, life):
        await asyncio.sleep(300)
        assert prepared == ["slow"]
        agent.terminate()
        async with asyncio.timeout(5):
            assert await life == "left"
        assert (await agent_now(user, agent.id)).state == "left"


@pytest.mark.parametrize(("private", "reads"), [(False, 1), (True, 0)])
async def test_the_pools_record_is_read_once_and_not_by_private_clusters(
    cluster: Cluster, tmp_path: Path, private: bool, reads: int
) -> None:
    core = await cluster.core()
    async with an_agent(core, tmp_path, overcommits=private):
        await asyncio.sleep(900)
    asked = [key for verb, key in cluster.connections[-1].asked if verb in READS and key == POOL]
    assert len(asked) == reads
