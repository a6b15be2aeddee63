"""An idle agent promises beats rarely, a busy one often: when the new promise takes effect, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fray_agents.agent.agent import Agent, AgentOptions, ExitReason
from fray_agents.agent.leases import Leases
from fray_agents.agent.membership import Heartbeat, Membership
from fray_agents.tasks.task_handle import TaskHandle, TaskSpec
from fray_coordinator.protocol.scheduling import entry_of
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, Resources
from tests.support.fake_tasks import fake
from tests.support.scripted_agents import agent_now, job_now, launch
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


@pytest.mark.parametrize("idle", [0.0, 200.0], ids=["just after it has joined", "after a while without work"])
async def test_no_job_is_claimed_under_the_long_promise_of_an_idle_agent(
    cluster: Cluster, tmp_path: Path, idle: float
) -> None:
    agent, running = await _started(cluster, tmp_path)
    await asyncio.sleep(idle)
    promised = await _promise_at_next_claim(cluster, agent)
    await launch(await cluster.core())
    await asyncio.sleep(10)
    running.cancel()
    assert promised == [SHORT / 3]


async def test_nor_while_a_beat_with_the_long_promise_is_on_its_way(cluster: Cluster, tmp_path: Path) -> None:
    agent, running = await _started(cluster, tmp_path)
    user = await cluster.core()
    await asyncio.sleep(1)
    promised = await _promise_at_next_claim(cluster, agent)

    async def launch_meanwhile() -> None:
        await launch(user)
        agent.look_for_work()
        await asyncio.sleep(3)

    cluster.connections[0].before["put", AgentKeys.key(agent.id)] = launch_meanwhile
    await asyncio.sleep(20)
    running.cancel()
    assert promised == [SHORT / 3]


async def test_a_job_runs_again_soon_if_its_agent_dies_a_second_after_it_has_joined(
    cluster: Cluster, tmp_path: Path
) -> None:
    user = await cluster.core()
    job = await launch(user)
    _, doomed = await _started(cluster, tmp_path)
    await asyncio.sleep(1)
    doomed.cancel()
    await asyncio.gather(doomed, return_exceptions=True)
    assert (await job_now(user, job.id)).status == "running"
    (tmp_path / "other").mkdir()
    _, running = await _started(cluster, tmp_path / "other")
    await asyncio.sleep(45)
    attempt = (await job_now(user, job.id)).attempt
    running.cancel()
    assert attempt == 2


async def _started(cluster: Cluster, tmp_path: Path) -> tuple[Agent, asyncio.Task[ExitReason]]:
    start = fake(tmp_path, {"job": 1e6})
    agent = Agent(await cluster.core(), AgentOptions(capacity=HOST, work_dir=tmp_path, start_task=start))
    return agent, asyncio.create_task(agent.run())


async def _promise_at_next_claim(cluster: Cluster, agent: Agent) -> list[float]:
    """A list that gets the promise in the agent's record, as the agent sends its next claim."""
    promised: list[float] = []
    observer = await cluster.core()

    async def look() -> None:
        promised.append((await agent_now(observer, agent.id)).interval)

    cluster.connections[0].before["put", "jobs/"] = look
    return promised


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
