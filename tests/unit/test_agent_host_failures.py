"""A failure of the host is not the job's failure."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fray_agents.agent.agent import Agent, AgentOptions
from fray_layouts.records import Resources
from tests.support.fake_tasks import fake
from tests.support.scripted_agents import agent_now, job_now, launch
from tests.support.virtual import Cluster

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)


async def test_a_log_that_cannot_be_read_requeues_the_job_and_the_host_is_avoided(
    cluster: Cluster, tmp_path: Path
) -> None:
    user = await cluster.core()
    broken = fake(tmp_path / "no-such-folder", {"job": 1.0}, output=b"lines")
    options = AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=broken)
    agent = asyncio.create_task(Agent(await cluster.core(), options).run())
    job = await launch(user)
    await asyncio.sleep(20)
    agent.cancel()
    await asyncio.gather(agent, return_exceptions=True)
    after = await job_now(user, job.id)
    assert (after.status, after.attempt, after.failures, after.preemptions) == ("pending", 2, 0, 1)
    assert after.history[0].exit.kind == "host-failed"
    assert after.avoid_hosts == [after.history[0].host]


async def test_an_agent_whose_disk_is_full_claims_nothing_and_says_so_until_there_is_room(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks = "the disk of /work is full"
    monkeypatch.setattr("fray_agents.agent.agent.lack_of_room", lambda folder: lacks)
    user = await cluster.core()
    options = AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=fake(tmp_path, {"job": 1.0}))
    agent = Agent(await cluster.core(), options)
    running = asyncio.create_task(agent.run())
    await asyncio.sleep(5)
    job = await launch(user)
    await asyncio.sleep(20)
    assert (await job_now(user, job.id)).status == "pending"
    problem = (await agent_now(user, agent.id)).problem
    assert problem.startswith("the disk of /work is full; the agent claims no jobs until somebody removes files there")
    lacks = ""
    await asyncio.sleep(20)
    assert (await job_now(user, job.id)).status == "succeeded"
    assert (await agent_now(user, agent.id)).problem == ""
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
