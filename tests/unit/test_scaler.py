"""Looks of the scaler: what waits makes machines, what is idle releases them, and nothing is made twice."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.provisioning.scaler import Scaler
from fray_coordinator.core import Core
from fray_coordinator.jobs.submission import submit
from fray_coordinator.store.interface import ANY
from fray_layouts.machine_keys import MachineKeys
from fray_layouts.object_keys import CoordinatorKeys, PoolKeys
from fray_layouts.records import AgentPoolRecord, MachineRecord, ProvisioningSpec, Resources, ScalerRecord
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.states import MachineState
from tests.support.fake_tasks import fake
from tests.support.memory_provider import MemoryProvider
from tests.support.virtual import Cluster, run

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)
POOL = "burst"


async def with_pool(core: Core, **fields: Any) -> None:
    spec = replace(ProvisioningSpec(provider="command", capacity=HOST, max=4, hourly_cost=1.0), **fields)
    await core.records.write(PoolKeys.record(POOL), AgentPoolRecord, AgentPoolRecord(provisioning=spec), None)


async def with_jobs(core: Core, count: int) -> None:
    wants = {"name": "job", "pool": POOL, "entrypoint": {"command": ["true"]}, "resources": {"cpu": 4}}
    await submit(core, [parse_spec(wants) for _ in range(count)])


async def machines(cluster: Cluster, core: Core) -> list[MachineRecord]:
    keys = [key for key in cluster.keys(MachineKeys.area) if MachineKeys.parse(key)]
    found = [await core.records.read(key, MachineRecord) for key in keys]
    return [stored.record for stored in found if stored is not None]


async def test_what_waits_makes_machines_within_the_bounds(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core)
    await with_jobs(core, 6)
    scaler = Scaler(core, "one", provider.open)
    found = await scaler.look()
    assert (len(provider.machines), found[POOL].limit) == (4, "max")
    await scaler.look()
    assert {m.state for m in await machines(cluster, core)} == {MachineState.CREATING}
    assert provider.machines.keys() == {m.name for m in await machines(cluster, core)}
    assert sum(m.hourly_cost or 0 for m in await machines(cluster, core)) == 4.0


async def test_nothing_waits_and_nothing_is_made(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core)
    await Scaler(core, "one", provider.open).look()
    assert provider.asked == []


async def test_a_lost_reply_makes_no_second_machine(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider(lost=1)
    await with_pool(core, max=1)
    await with_jobs(core, 1)
    scaler = Scaler(core, "one", provider.open)
    for _ in range(5):
        await scaler.look()
        await asyncio.sleep(60)
    assert provider.asked == [("create", "")]
    assert [m.name for m in await machines(cluster, core)] == [*provider.machines]


async def test_a_zone_without_room_is_followed_by_the_next_in_the_same_look(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider(refuse={"us-a": "stockout"})
    await with_pool(core, zones=["us-a", "eu-b"])
    await with_jobs(core, 1)
    found = await Scaler(core, "one", provider.open).look()
    assert provider.asked[:2] == [("create", "us-a"), ("create", "eu-b")]
    assert (found[POOL].zones["us-a"].kind, found[POOL].zones["us-a"].text) == ("stockout", "nothing left in us-a")
    assert [listed.zone for listed in provider.machines.values()] == ["eu-b"]


async def test_a_machine_that_no_record_knows_is_deleted(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core, max=1)
    await with_jobs(core, 1)
    scaler = Scaler(core, "one", provider.open)
    await scaler.look()
    (name,) = provider.machines
    await core.store.delete(MachineKeys.key(POOL, name))
    await scaler.look()
    assert name not in provider.machines


async def test_a_provider_that_does_not_answer_is_told_and_kills_nothing(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core, max=1)
    await with_jobs(core, 1)
    scaler = Scaler(core, "one", provider.open)
    await scaler.look()
    provider.silent = True
    await asyncio.sleep(30)
    assert (await scaler.look())[POOL].problem == "no answer"
    assert [m.state for m in await machines(cluster, core)] == [MachineState.CREATING]


async def test_one_process_has_the_role_and_another_takes_it_when_it_is_given_up(cluster: Cluster) -> None:
    first, second = Scaler(await cluster.core(), "first"), Scaler(await cluster.core(), "second")
    assert await first.try_look()
    assert not await second.try_look()
    await first.resign()
    assert await second.try_look()
    found = await second.core.records.read(CoordinatorKeys.scaler, ScalerRecord)
    assert found is not None
    assert found.record.holder == "second"


async def test_a_role_whose_holder_died_is_taken_over(cluster: Cluster) -> None:
    first, second = Scaler(await cluster.core(), "first"), Scaler(await cluster.core(), "second")
    assert await first.try_look()
    looked = [await second.try_look()]
    for _ in range(10):
        await asyncio.sleep(5)
        looked.append(await second.try_look())
    assert looked[0] is False
    assert looked[-1] is True


async def test_an_idle_machine_is_drained_and_then_deleted(cluster: Cluster, tmp_path: Path) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core, max=1, idle_seconds=30.0)
    await with_jobs(core, 1)
    scaler = Scaler(core, "one", provider.open)
    await scaler.look()
    (name,) = provider.machines
    start = fake(tmp_path, {"job": 5.0})
    options = AgentOptions(pool=POOL, capacity=HOST, work_dir=tmp_path, start_task=start, machine=name)
    agent = Agent(await cluster.core(), options)
    running = asyncio.create_task(agent.run())
    states: list[str] = []
    for _ in range(100):
        await asyncio.sleep(5)
        await scaler.look()
        states += [m.state for m in await machines(cluster, core) if m.state not in states[-1:]]
    await running
    assert [state for state in states if state != "creating"] == ["up", "draining", "deleting", "gone"]
    assert provider.machines == {}


async def test_two_scalers_at_once_make_no_more_than_the_pool_may_have(cluster: Cluster) -> None:
    provider = MemoryProvider()
    core = await cluster.core()
    await with_pool(core, max=2)
    await with_jobs(core, 8)
    both = [Scaler(await cluster.core(), name, provider.open) for name in ("one", "two")]
    for _ in range(10):
        await asyncio.gather(*(scaler.look() for scaler in both))
        assert len(provider.machines) <= 2
        await asyncio.sleep(10)
    assert len(provider.machines) == 2


async def _killed_at(cluster: Cluster, ticks: int) -> bool:
    """A look that is killed after so many steps, and the looks of others after it; whether it had ended before."""
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core, max=2)
    await with_jobs(core, 2)
    dying = asyncio.create_task(Scaler(await cluster.core(), "dying", provider.open).look())
    for _ in range(ticks):
        await asyncio.sleep(0)
    ended = not dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    recorded = {machine.name for machine in await machines(cluster, core)}
    assert provider.machines.keys() <= recorded
    other = Scaler(core, "other", provider.open)
    for _ in range(3):
        await other.look()
        assert len(provider.machines) <= 2
        await asyncio.sleep(60)
    there = [machine for machine in await machines(cluster, core) if machine.state != MachineState.GONE]
    assert provider.machines.keys() == {machine.name for machine in there}
    assert len(there) == 2
    return ended


def test_a_scaler_that_is_killed_anywhere_leaves_nothing_twice_and_nothing_forgotten() -> None:
    ticks = 0
    while not run(partial(_killed_at, ticks=ticks)):
        ticks += 1
    assert ticks > 20


async def test_a_machine_whose_record_cannot_be_read_is_left_alone_and_told(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core, max=1)
    await with_jobs(core, 1)
    scaler = Scaler(core, "one", provider.open)
    await scaler.look()
    (key,) = cluster.keys(MachineKeys.folder(POOL))
    await core.store.put(key, b"{", ANY)
    await asyncio.sleep(60)
    found = await scaler.look()
    assert [verb for verb, _ in provider.asked] == ["create"], "and no other in its place"
    assert key in found[POOL].problem
