"""Agents while the store does not answer or refuses writes: none is declared dead, and agents still leave later."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fray_agents.agent.agent import Agent, AgentOptions, ExitReason
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_layouts.records import Resources
from tests.support.fake_tasks import fake
from tests.support.scripted_agents import agent_now, launch
from tests.support.virtual import Cluster

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)
BAD_MOMENTS = [(43.0, 50.0), (48.0, 75.0), (60.0, 100.0), (64.0, 140.0)]
"""When nobody can write, and for how long. Once, the pass's lease looked so old that its holder was declared dead."""


async def test_the_holder_of_the_pass_leaves_in_an_outage(cluster: Cluster, tmp_path: Path) -> None:
    agent = Agent(await cluster.core(), AgentOptions(capacity=HOST, work_dir=tmp_path))
    running = asyncio.create_task(agent.run())
    await asyncio.sleep(20)
    assert not await Reconciler(await cluster.core(), "other").try_pass(), "the agent holds the pass's lease"
    cluster.cut()
    agent.terminate()
    await asyncio.sleep(300)
    still_there = not running.done()
    cluster.cut(False)
    assert (await running, still_there) == (ExitReason.LEFT, True)


@pytest.mark.parametrize(("begins", "lasts"), BAD_MOMENTS)
async def test_no_agent_is_declared_dead_because_of_an_outage_of_writes(
    cluster: Cluster, begins: float, lasts: float, tmp_path: Path
) -> None:
    """Idle agents trust themselves for minutes. The busy holder of the pass seems neither to renew nor to beat."""

    options = AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=fake(tmp_path, {"job": 1e6}))
    agents = [Agent(await cluster.core(), options) for _ in range(3)]
    running = [asyncio.create_task(agent.run()) for agent in agents]
    user = await cluster.core()
    await launch(user)
    for seconds, read_only in ((begins, True), (lasts, False), (120.0, False)):
        await asyncio.sleep(seconds)
        for connection in cluster.connections:
            connection.read_only = read_only
    states = [(await agent_now(user, agent.id)).state for agent in agents]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert states == ["live"] * 3
