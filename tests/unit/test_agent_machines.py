"""Agents on the machines of a pool."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fray_agents.agent.agent import Agent, AgentOptions
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, Resources
from tests.support.virtual import Cluster

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)


async def test_an_agent_says_which_machine_it_runs_on(cluster: Cluster, tmp_path: Path) -> None:
    core = await cluster.core()
    agent = Agent(core, AgentOptions(pool="spot", capacity=HOST, work_dir=tmp_path, machine="m0kq1"))
    running = asyncio.create_task(agent.run())
    await asyncio.sleep(10)
    found = await core.records.read(AgentKeys.key(agent.id), AgentRecord)
    agent.terminate()
    await running
    assert found is not None
    assert (found.record.pool, found.record.machine) == ("spot", "m0kq1")
