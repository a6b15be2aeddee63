"""An agent told to leave while the store does not answer: it leaves once the store is back, without an error."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fray_agents.agent import Agent, AgentOptions, Departure
from fray_coordinator.coordinate import Pass
from fray_layouts.records import Resources
from tests.support.virtual import Cluster, run

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)


def test_the_holder_of_the_pass_leaves_in_an_outage(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> tuple[Departure, bool]:
        agent = Agent(await cluster.core(), AgentOptions(capacity=HOST, work_dir=tmp_path))
        running = asyncio.create_task(agent.run())
        await asyncio.sleep(20)
        assert not await Pass(await cluster.core(), "other").turn(), "the agent holds the pass's lease"
        cluster.cut()
        agent.terminate()
        await asyncio.sleep(300)
        still_there = not running.done()
        cluster.cut(False)
        return await running, still_there

    assert run(main) == (Departure.LEFT, True)
