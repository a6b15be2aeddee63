"""Agents on the machines of a pool."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from fray_agents.agent import scaler_loop
from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.agent.scaler_loop import ScalerLoop
from fray_agents.provisioning.scaler import Scaler
from fray_coordinator.jobs.submission import submit
from fray_coordinator.protocol.scaling.provisioning import ScalingScope
from fray_coordinator.protocol.scaling.view import ListedMachine, ListedState
from fray_coordinator.store.interface import ABSENT
from fray_layouts.object_keys import AgentKeys, CoordinatorKeys, MachineKeys, PoolKeys
from fray_layouts.records import (
    AgentPoolRecord,
    AgentRecord,
    MachineRecord,
    ProvisioningSpec,
    Resources,
    ScalerRecord,
)
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.states import AgentState
from tests.support.fake_tasks import fake
from tests.support.members import trusted_member
from tests.support.memory_provider import MemoryProvider
from tests.support.virtual import Cluster

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)
SCOPE = ScalingScope(named=frozenset({"spot"}))


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


async def test_the_last_agent_of_a_pool_has_its_own_machine_deleted(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    monkeypatch.setattr(scaler_loop, "Scaler", partial(Scaler, open_provider=provider.open))
    spec = ProvisioningSpec(provider="command", capacity=HOST, idle_seconds=30.0, hourly_cost=1.0)
    await core.records.put(PoolKeys.record("spot"), AgentPoolRecord(provisioning=spec), ABSENT)
    await submit(core, [parse_spec({"name": "job", "pool": "spot", "entrypoint": {"command": ["true"]}})])
    starter = Scaler(core, "wait-1", SCOPE, provider.open)
    assert await starter.run_if_elected()
    await starter.resign()
    [machine] = provider.machines
    options = AgentOptions("spot", HOST, work_dir=tmp_path, start_task=fake(tmp_path, {"job": 5.0}), machine=machine)
    await Agent(await cluster.core(), options).run()
    assert provider.machines == {}
    assert provider.asked == [("create", ""), ("delete", machine)]


async def test_the_last_machine_of_a_scaler_that_died_is_deleted_by_its_agent(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    spec = ProvisioningSpec(provider="command", capacity=HOST)
    await core.records.put(PoolKeys.record("spot"), AgentPoolRecord(provisioning=spec), ABSENT)
    await core.records.put(CoordinatorKeys.scaler, ScalerRecord(holder="dead"), ABSENT)
    provider.machines["m1"] = ListedMachine("spot", "m1", "", ListedState.READY)
    drains = MachineRecord(pool="spot", name="m1", state="draining", provider="command", batch="m1", up_at=0.0)
    await core.records.put(MachineKeys.key("spot", "m1"), drains, ABSENT)
    left = AgentRecord(id="left", host="h", pool="spot", machine="m1", state=AgentState.LEFT)
    await core.records.put(AgentKeys.key("left"), left, ABSENT)
    loop = ScalerLoop(trusted_member(core, HOST), SCOPE, asked=False)
    loop._scaler.open_provider = provider.open
    await loop.run_once_more()
    assert provider.machines == {}


async def test_an_agent_that_is_denied_its_machines_leaves_at_once(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider(denied=True)
    spec = ProvisioningSpec(provider="command", capacity=HOST)
    await core.records.put(PoolKeys.record("spot"), AgentPoolRecord(provisioning=spec), ABSENT)
    loop = ScalerLoop(trusted_member(core, HOST), SCOPE, asked=False)
    loop._scaler.open_provider = provider.open
    assert await loop._scaler.run_if_elected()
    left_at = core.clock.boottime()
    await loop.run_once_more()
    assert core.clock.boottime() == left_at


@pytest.fixture
def last_looks(monkeypatch: pytest.MonkeyPatch) -> list[ScalerLoop]:
    """The agents that looked after the machines once more after they had left."""
    looked = list[ScalerLoop]()

    async def run_once_more(loop: ScalerLoop) -> None:
        looked.append(loop)

    monkeypatch.setattr(ScalerLoop, "run_once_more", run_once_more)
    return looked


async def test_an_agent_that_counts_as_dead_looks_after_no_machine(
    cluster: Cluster, tmp_path: Path, last_looks: list[ScalerLoop]
) -> None:
    core = await cluster.core()
    await submit(core, [parse_spec({"name": "job", "pool": "spot", "entrypoint": {"command": ["true"]}})])
    options = AgentOptions("spot", HOST, work_dir=tmp_path, start_task=fake(tmp_path, {"job": 3600.0}), machine="m1")
    agent = Agent(core, options)
    running = asyncio.create_task(agent.run())
    key = AgentKeys.key(agent.id)
    for change in ({"drain": True, "mail": True}, {"state": AgentState.DEAD}):
        await asyncio.sleep(10)
        await core.records.change(key, AgentRecord, lambda now, change=change: replace(now, **change))  # type: ignore[misc]
    await running
    assert last_looks == []


async def test_an_agent_that_is_terminated_looks_after_the_machines_once_more(
    cluster: Cluster, tmp_path: Path, last_looks: list[ScalerLoop]
) -> None:
    agent = Agent(await cluster.core(), AgentOptions("spot", HOST, work_dir=tmp_path, machine="m1"))
    running = asyncio.create_task(agent.run())
    await asyncio.sleep(10)
    agent.terminate()
    await running
    assert len(last_looks) == 1
