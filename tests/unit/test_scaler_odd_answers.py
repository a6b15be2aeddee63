"""Looks of the scaler where a provider is slow, refuses several machines at once, or lists what nobody can remove."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.provisioning.scaler import Scaler
from tests.support.fake_tasks import fake
from tests.support.memory_provider import MemoryProvider
from tests.support.virtual import Cluster
from tests.unit.test_scaler import HOST, POOL, with_jobs, with_pool


async def test_agents_are_not_silent_because_their_provider_is_slow(cluster: Cluster, tmp_path: Path) -> None:
    core, provider = await cluster.core(), MemoryProvider(slow=80.0)
    await with_pool(core)
    await with_jobs(core, 1)
    options = AgentOptions(pool=POOL, capacity=HOST, work_dir=tmp_path, start_task=fake(tmp_path, {"job": 3600.0}))
    agent = Agent(await cluster.core(), options)
    running = asyncio.create_task(agent.run())
    await asyncio.sleep(60)
    await Scaler(core, "one", provider.open).look()
    assert provider.asked == [], "its job does not wait for a machine"
    running.cancel()


async def test_machines_that_a_zone_refuses_at_once_are_one_refusal(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider(refuse={"us-a": "stockout"})
    await with_pool(core, zones=["us-a"])
    await with_jobs(core, 4)
    found = await Scaler(core, "one", provider.open).look()
    assert provider.asked == [("create", "us-a")] * 4
    assert found[POOL].zones["us-a"].times == 1
