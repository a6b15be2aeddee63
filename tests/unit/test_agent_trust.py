"""An idle agent promises beats rarely, a busy one often: when the new promise takes effect, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.agent.heartbeat import Heartbeat
from fray_agents.agent.leases import Leases
from fray_agents.agent.membership import Membership
from fray_agents.tasks.handle import TaskHandle, TaskSpec
from fray_coordinator.protocol.scheduling import entry_of
from fray_layouts.records import AgentRecord, Resources
from tests.support.fake_tasks import fake
from tests.support.scripted_agents import launch
from tests.support.virtual import Cluster

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)
LONG, SHORT = 180.0, 15.0
"""Three intervals of an idle agent's beat, and of a busy one's."""


async def test_a_shorter_promise_binds_once_it_is_sent_and_a_longer_one_once_it_is_applied(cluster: Cluster) -> None:
    core = await cluster.core()
    clock, connection, leases = cluster.clock, cluster.connections[-1], Leases(HOST)
    record = AgentRecord(id="a", host="h", pool="default", interval=core.settings.idle_beat_interval)
    member = Membership(core, record, leases)
    heartbeat = Heartbeat(member, lambda holdings: None, lambda: None)
    trust: list[float] = []

    async def sent() -> None:
        trust.append(member.trusted_until - clock.boottime())

    await heartbeat.register()
    assert member.trusted_until - clock.boottime() == LONG
    beating = asyncio.create_task(heartbeat.run())
    await asyncio.sleep(3)
    connection.before["put", "agents/"] = sent
    held = leases.add(entry_of(await launch(core)))
    await asyncio.sleep(5)
    assert trust == [SHORT]
    leases.remove(held)
    connection.before["put", "agents/"] = sent
    await asyncio.sleep(5)
    assert trust[1] < SHORT
    assert member.trusted_until - clock.boottime() > LONG - 5
    beating.cancel()


async def test_a_task_that_hears_nothing_more_ends_in_time_for_the_shortest_promise(
    cluster: Cluster, tmp_path: Path
) -> None:
    left: list[float] = []
    start = fake(tmp_path, {"job": 1e6})

    def told(boottime: float) -> None:
        left.append(boottime - cluster.clock.boottime())

    async def starting(spec: TaskSpec, deadline: float, lock_fd: int | None) -> TaskHandle:
        task = await start(spec, deadline, lock_fd)
        task.set_deadline = told  # type: ignore[method-assign]
        told(deadline)
        return task

    options = AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=starting)
    agent = asyncio.create_task(Agent(await cluster.core(), options).run())
    await asyncio.sleep(1)
    await launch(await cluster.core())
    await asyncio.sleep(20)
    agent.cancel()
    await asyncio.gather(agent, return_exceptions=True)
    left = left
    assert len(left) > 10
    assert max(left) <= SHORT + 1e-6
