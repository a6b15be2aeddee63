"""Preparations that fail, take long, or are no longer wanted; in virtual time."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.environments.cache import EnvironmentFailed, HostUnfit
from fray_agents.environments.prepare import Prepared, Preparer
from fray_coordinator.core import Core
from fray_coordinator.jobs.logs import follow_chunks, read_logs
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.jobs.waiting import wait_for
from fray_layouts.records import JobRecord, Resources
from fray_runtime.directories import UntrustedDirectory
from tests.support.fake_tasks import fake
from tests.support.scripted_agents import agent_now, job_now, launch
from tests.support.virtual import Cluster

HOST = Resources(cpu=1000, memory=2**33, disk=2**33)


@asynccontextmanager
async def an_agent(cluster: Cluster, folder: Path) -> AsyncIterator[Agent]:
    options = AgentOptions(capacity=HOST, work_dir=folder, start_task=fake(folder, {"job": 5.0}))
    agent = Agent(await cluster.core(), options)
    life = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)


async def ended(user: Core, job: JobRecord) -> JobRecord:
    await wait_for(user, [job.id], timeout=4000)
    return await job_now(user, job.id)


def prepares(monkeypatch: pytest.MonkeyPatch, act: Callable[..., object]) -> None:
    monkeypatch.setattr(Preparer, "prepare", act)


async def test_an_environment_that_cannot_be_made_fails_the_job_at_once_and_its_output_is_the_log(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prepare(
        self: Preparer, job: JobRecord, directory: Path, held: AsyncExitStack, tell: Callable[[str], None]
    ) -> Prepared:
        error = EnvironmentFailed("the job's packages cannot be installed")
        error.log = tmp_path / "environment.log"
        raise error

    (tmp_path / "environment.log").write_text("error: there is no package nosuch\nin line 2")
    prepares(monkeypatch, prepare)
    user = await cluster.core()
    async with an_agent(cluster, tmp_path):
        after = await ended(user, await launch(user, max_retries_failure=5))
    assert after.exit is not None
    assert (after.status, after.attempt, after.exit.kind) == ("failed", 1, "environment-failed")
    assert after.exit.message == "the job's packages cannot be installed"
    said = [line.data for line in await read_logs(user, after)]
    assert said == [b"error: there is no package nosuch", b"in line 2"]


@pytest.mark.parametrize(
    "error",
    [
        HostUnfit("the index does not answer"),
        OSError(errno.ENOSPC, "No space left on device"),
        UntrustedDirectory(Path("/cache"), "can be written by other users"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_environment_that_one_host_cannot_build_is_tried_on_another(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def prepare(*_: object) -> Prepared:
        raise error

    prepares(monkeypatch, prepare)
    user = await cluster.core()
    job = await launch(user)
    async with an_agent(cluster, tmp_path):
        await asyncio.sleep(20)
        after = await job_now(user, job.id)
    assert (after.failures, after.avoid_hosts) == (0, [after.history[0].host])
    assert after.history[0].exit.kind == "start-failed"
    assert str(error) in after.history[0].exit.message


@pytest.mark.parametrize("stopped", [False, True])
async def test_the_step_of_a_preparation_is_shown_and_its_resources_are_released_at_the_end(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    let_go: list[str] = []

    async def prepare(
        self: Preparer, job: JobRecord, directory: Path, held: AsyncExitStack, tell: Callable[[str], None]
    ) -> Prepared:
        held.callback(let_go.append, job.id)
        tell("building the environment")
        await asyncio.sleep(60)
        return Prepared(env={"MADE": "yes"})

    prepares(monkeypatch, prepare)
    user = await cluster.core()
    job = await launch(user)
    async with an_agent(cluster, tmp_path) as agent:
        await asyncio.sleep(20)
        (holding,) = (await agent_now(user, agent.id)).holdings.values()
        assert (holding.activity, let_go) == ("building the environment", [])
        if stopped:
            await stop(user, job.id, "not wanted")
        after = await ended(user, job)
        assert after.status == ("stopped" if stopped else "succeeded")
        await asyncio.sleep(10)
        assert (await agent_now(user, agent.id)).holdings == {}
    assert let_go == [job.id]


async def test_a_follower_of_a_job_sees_the_steps_of_its_preparation(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prepare(
        self: Preparer, job: JobRecord, directory: Path, held: AsyncExitStack, tell: Callable[[str], None]
    ) -> Prepared:
        for count in (1, 2):
            tell(f"building the environment, {count} of 2 packages")
            await asyncio.sleep(20)
        tell("")
        return Prepared()

    prepares(monkeypatch, prepare)
    user = await cluster.core()
    told: list[str] = []
    async with an_agent(cluster, tmp_path):
        for environment in ({"workspace": {"blob": f"blobs/2026-01/{'0' * 64}"}}, {}):
            job = await launch(user, environment=environment)
            async for _ in follow_chunks(user, job.id, on_waiting=lambda job, what: told.append(what)):
                pass
    assert told == [f"building the environment, {count} of 2 packages" for count in (1, 2)]
