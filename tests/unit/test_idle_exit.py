"""An agent that leaves when it has had no work for a while."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fray_agents.agent.agent import Agent, AgentOptions, ExitReason
from fray_layouts.records import Resources
from tests.support.fake_tasks import fake
from tests.support.scripted_agents import job_now, launch
from tests.support.virtual import Cluster

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)


async def test_an_agent_leaves_once_it_was_idle_for_long_enough_and_not_while_it_works(
    cluster: Cluster, tmp_path: Path
) -> None:
    user = await cluster.core()
    options = AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=fake(tmp_path, {"job": 300.0}), idle_exit=60.0)
    agent = asyncio.create_task(Agent(await cluster.core(), options).run())
    await asyncio.sleep(30)
    job = await launch(user)
    await asyncio.sleep(200)
    assert not agent.done()
    await asyncio.sleep(150)
    assert (await job_now(user, job.id)).status == "succeeded"
    assert not agent.done()
    await asyncio.sleep(60)
    assert agent.done()
    assert agent.result() is ExitReason.LEFT
