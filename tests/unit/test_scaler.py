"""Looks of the scaler: waiting work makes machines, idle machines are released, and nothing is made twice."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.provisioning.provider import Provider
from fray_agents.provisioning.scaler import STEP_BACK_SECONDS, Scaler
from fray_coordinator.core import Core
from fray_coordinator.jobs.pools import change_pool
from fray_coordinator.jobs.submission import submit
from fray_coordinator.protocol.role_lease import LEASE_INTERVALS
from fray_coordinator.protocol.scaling.provisioning import ScalingScope
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import CoordinatorKeys, JobKeys, MachineKeys, PoolKeys
from fray_layouts.records import (
    AgentPoolRecord,
    JobLease,
    JobRecord,
    MachineRecord,
    ProvisioningSpec,
    Resources,
    ScalerRecord,
)
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.states import MachineState
from tests.support.fake_tasks import fake
from tests.support.memory_provider import MemoryProvider
from tests.support.virtual import Cluster, run

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)
POOL = "burst"
SCOPE = ScalingScope(named=frozenset({POOL, "other"}))
SOUND = ProvisioningSpec(provider="command", capacity=HOST)


async def with_pool(core: Core, pool: str = POOL, **fields: Any) -> None:
    spec = replace(ProvisioningSpec(provider="command", capacity=HOST, max=4, hourly_cost=1.0), **fields)
    await core.records.write(PoolKeys.record(pool), AgentPoolRecord, AgentPoolRecord(provisioning=spec), None)


async def with_jobs(core: Core, count: int) -> None:
    wants = {"name": "job", "pool": POOL, "entrypoint": {"command": ["true"]}, "resources": {"cpu": 4}}
    await submit(core, [parse_spec(wants) for _ in range(count)])


async def machines(cluster: Cluster, core: Core) -> list[MachineRecord]:
    keys = [key for key in cluster.keys(MachineKeys.area) if MachineKeys.parse(key)]
    found = [await core.records.read(key, MachineRecord) for key in keys]
    return [stored.record for stored in found if stored is not None]


async def test_waiting_jobs_make_machines_within_the_bounds(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core)
    await with_jobs(core, 6)
    scaler = Scaler(core, "one", SCOPE, provider.open)
    found = await scaler.run_once()
    assert (len(provider.machines), found[POOL].limit) == (4, "max")
    await scaler.run_once()
    assert {m.state for m in await machines(cluster, core)} == {MachineState.CREATING}
    assert provider.machines.keys() == {m.name for m in await machines(cluster, core)}
    assert sum(m.hourly_cost or 0 for m in await machines(cluster, core)) == 4.0


async def test_nothing_waits_and_nothing_is_made(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core)
    await Scaler(core, "one", SCOPE, provider.open).run_once()
    assert provider.asked == []


async def test_a_lost_reply_makes_no_second_machine(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider(lost=1)
    await with_pool(core, max=1)
    await with_jobs(core, 1)
    scaler = Scaler(core, "one", SCOPE, provider.open)
    for _ in range(5):
        await scaler.run_once()
        await asyncio.sleep(60)
    assert provider.asked == [("create", "")]
    assert [m.name for m in await machines(cluster, core)] == [*provider.machines]


async def test_a_zone_without_room_is_followed_by_the_next_in_the_same_run(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider(refuse={"us-a": "stockout"})
    await with_pool(core, zones=["us-a", "eu-b"])
    await with_jobs(core, 1)
    found = await Scaler(core, "one", SCOPE, provider.open).run_once()
    assert provider.asked[:2] == [("create", "us-a"), ("create", "eu-b")]
    assert (found[POOL].zones["us-a"].kind, found[POOL].zones["us-a"].text) == ("stockout", "nothing left in us-a")
    assert [listed.zone for listed in provider.machines.values()] == ["eu-b"]


async def test_a_provider_that_does_not_answer_is_told_and_kills_nothing(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core, max=1)
    await with_jobs(core, 1)
    scaler = Scaler(core, "one", SCOPE, provider.open)
    await scaler.run_once()
    provider.silent = True
    await asyncio.sleep(30)
    assert (await scaler.run_once())[POOL].problem == "no answer"
    assert [m.state for m in await machines(cluster, core)] == [MachineState.CREATING]


async def test_one_process_has_the_role_and_another_takes_it_when_it_is_given_up(cluster: Cluster) -> None:
    first, second = Scaler(await cluster.core(), "first", SCOPE), Scaler(await cluster.core(), "second", SCOPE)
    assert await first.run_if_elected()
    assert not await second.run_if_elected()
    await first.resign()
    assert await second.run_if_elected()
    found = await second.core.records.read(CoordinatorKeys.scaler, ScalerRecord)
    assert found is not None
    assert found.record.holder == "second"


async def test_a_role_whose_holder_died_is_taken_over(cluster: Cluster) -> None:
    first, second = Scaler(await cluster.core(), "first", SCOPE), Scaler(await cluster.core(), "second", SCOPE)
    assert await first.run_if_elected()
    ran = [await second.run_if_elected()]
    for _ in range(10):
        await asyncio.sleep(5)
        ran.append(await second.run_if_elected())
    assert ran[0] is False
    assert ran[-1] is True


async def test_a_run_that_takes_longer_than_the_lease_keeps_it(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider(slow=80.0)
    await with_pool(core)
    first, second = (
        Scaler(core, "first", SCOPE, provider.open),
        Scaler(await cluster.core(), "second", SCOPE, provider.open),
    )
    looking = asyncio.create_task(first.run_if_elected())
    while not looking.done():
        await asyncio.sleep(5)
        assert not await second.run_if_elected()
    assert await looking


async def test_a_scaler_that_lost_the_role_asks_the_provider_for_nothing_more(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider(slow=80.0)
    await with_pool(core)
    await with_jobs(core, 1)
    looking = asyncio.create_task(Scaler(core, "first", SCOPE, provider.open).run_if_elected())
    await asyncio.sleep(1)
    await core.records.change(CoordinatorKeys.scaler, ScalerRecord, lambda now: replace(now, holder="second"))
    assert not await looking
    await asyncio.sleep(100)
    assert provider.asked == []


async def test_a_role_whose_record_cannot_be_read_is_taken_once_it_has_aged(cluster: Cluster) -> None:
    core = await cluster.core()
    await core.store.put(CoordinatorKeys.scaler, b"{", ANY)
    scaler, interval = Scaler(core, "one", SCOPE), core.settings.pass_interval
    for _ in range(LEASE_INTERVALS):
        assert not await scaler.run_if_elected()
        await asyncio.sleep(interval)
    assert await scaler.run_if_elected()
    found = await core.records.read(CoordinatorKeys.scaler, ScalerRecord)
    assert found is not None
    assert found.record.holder == "one"


async def test_a_volunteer_leaves_scaling_to_others_if_it_lacks_a_right(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider(denied=True)
    await with_pool(core)
    volunteer = Scaler(core, "volunteer", SCOPE, provider.open, steps_back=True)
    assert await volunteer.run_if_elected()
    assert not await volunteer.run_if_elected()
    other = Scaler(await cluster.core(), "other", SCOPE, provider.open)
    assert await other.run_if_elected(), "the role is free"
    assert await other.run_if_elected(), "who was asked to goes on"
    found = await core.records.read(CoordinatorKeys.scaler, ScalerRecord)
    assert found is not None
    assert found.record.pools[POOL].problem == "the role machines.list is missing"


async def test_a_volunteer_scales_again_after_an_hour_whatever_was_scaled_meanwhile(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider(denied=True)
    await with_pool(core, "closed")
    volunteer = Scaler(core, "volunteer", ScalingScope(every=True), provider.open, steps_back=True)
    assert await volunteer.run_if_elected()
    assert not await volunteer.run_if_elected()
    await core.store.delete(PoolKeys.record("closed"))
    await core.records.change(CoordinatorKeys.scaler, ScalerRecord, lambda now: replace(now, pools={}))
    await with_pool(core)
    await asyncio.sleep(STEP_BACK_SECONDS)
    assert await volunteer.run_if_elected()


async def test_a_volunteer_leaves_only_the_pool_in_which_it_lacks_a_right(cluster: Cluster) -> None:
    core, provider, closed = await cluster.core(), MemoryProvider(), MemoryProvider(denied=True)
    await with_pool(core)
    await with_pool(core, "closed")
    await with_jobs(core, 1)
    opened: list[str] = []

    async def open_provider(core: Core, pool: str, spec: ProvisioningSpec) -> Provider:
        opened.append(pool)
        return await (closed if pool == "closed" else provider).open(core, pool, spec)

    volunteer = Scaler(core, "volunteer", ScalingScope(every=True), open_provider, steps_back=True)
    assert await volunteer.run_if_elected()
    for _ in range(3):
        await asyncio.sleep(core.settings.pass_interval)
        assert await volunteer.run_if_elected()
    assert len(provider.machines) == 1
    assert opened.count("closed") == 1
    found = await core.records.read(CoordinatorKeys.scaler, ScalerRecord)
    assert found is not None
    assert (found.record.holder, found.record.scope) == ("volunteer", [POOL]), "others may scale the other"
    assert found.record.pools["closed"].problem == "the role machines.list is missing"
    other = Scaler(await cluster.core(), "other", ScalingScope(frozenset({"closed"})), provider.open)
    await asyncio.sleep(core.settings.pass_interval)
    assert await other.run_if_elected()


async def test_a_volunteer_goes_on_scaling_while_a_provider_does_not_answer(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider(silent=True)
    await with_pool(core)
    volunteer = Scaler(core, "volunteer", SCOPE, provider.open, steps_back=True)
    assert await volunteer.run_if_elected()
    assert await volunteer.run_if_elected()


async def test_an_idle_machine_is_drained_and_then_deleted(cluster: Cluster, tmp_path: Path) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core, max=1, idle_seconds=30.0)
    await with_jobs(core, 1)
    scaler = Scaler(core, "one", SCOPE, provider.open)
    await scaler.run_once()
    (name,) = provider.machines
    start = fake(tmp_path, {"job": 5.0})
    options = AgentOptions(pool=POOL, capacity=HOST, work_dir=tmp_path, start_task=start, machine=name)
    agent = Agent(await cluster.core(), options)
    running = asyncio.create_task(agent.run())
    states: list[str] = []
    for _ in range(100):
        await asyncio.sleep(5)
        await scaler.run_once()
        states += [m.state for m in await machines(cluster, core) if m.state not in states[-1:]]
    await running
    assert [state for state in states if state != "creating"] == ["up", "draining", "deleting", "gone"]
    assert provider.machines == {}


async def test_two_scalers_at_once_make_no_more_than_the_pool_may_have(cluster: Cluster) -> None:
    provider = MemoryProvider()
    core = await cluster.core()
    await with_pool(core, max=2)
    await with_jobs(core, 8)
    both = [Scaler(await cluster.core(), name, SCOPE, provider.open) for name in ("one", "two")]
    for _ in range(10):
        await asyncio.gather(*(scaler.run_once() for scaler in both))
        assert len(provider.machines) <= 2
        await asyncio.sleep(10)
    assert len(provider.machines) == 2


async def _killed_at(cluster: Cluster, ticks: int) -> bool:
    """A run that is killed after this many steps, then runs of others. Returns whether it had ended before."""
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core, max=2)
    await with_jobs(core, 2)
    dying = asyncio.create_task(Scaler(await cluster.core(), "dying", SCOPE, provider.open).run_once())
    for _ in range(ticks):
        await asyncio.sleep(0)
    ended = not dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    recorded = {machine.name for machine in await machines(cluster, core)}
    assert provider.machines.keys() <= recorded
    other = Scaler(core, "other", SCOPE, provider.open)
    for _ in range(3):
        await other.run_once()
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
    scaler = Scaler(core, "one", SCOPE, provider.open)
    await scaler.run_once()
    (key,) = cluster.keys(MachineKeys.folder(POOL))
    await core.store.put(key, b"{", ANY)
    await asyncio.sleep(60)
    found = await scaler.run_once()
    assert [verb for verb, _ in provider.asked] == ["create"], "and no other in its place"
    assert key in found[POOL].problem
    two = ProvisioningSpec(provider="command", capacity=HOST, max=2, hourly_cost=1.0)
    await change_pool(core, POOL, lambda pool: AgentPoolRecord(provisioning=two))
    found = await scaler.run_once()
    assert [verb for verb, _ in provider.asked] == ["create", "create"], "the rest of the pool goes on"
    assert key in found[POOL].problem


async def test_a_damaged_record_of_a_machine_is_its_pools_trouble_only(cluster: Cluster) -> None:
    """This includes a valid record whose only fault is its zone, which the scaler's own record would repeat."""
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core)
    await core.records.write(PoolKeys.record("other"), AgentPoolRecord, AgentPoolRecord(provisioning=SOUND), None)
    damaged = b'{"pool": "burst", "name": "m1", "state": "up", "zone": "a b"}'
    await core.store.put(MachineKeys.key(POOL, "m1"), damaged, ANY)
    found = await Scaler(core, "one", SCOPE, provider.open).run_once()
    assert [bool(found[pool].problem) for pool in (POOL, "other")] == [True, False]


async def test_a_job_whose_agent_was_killed_right_after_its_claim_makes_a_machine(cluster: Cluster) -> None:
    """Without agents nobody runs the pass that would requeue it. Its entry is all that is left of it."""
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core)
    (done,) = await submit(core, [parse_spec({"name": "j", "pool": POOL, "entrypoint": {"command": ["true"]}})])
    lease = JobLease(agent="vm-1", host="vm", since=core.now())
    await asyncio.sleep(1)
    scaler = Scaler(core, "one", SCOPE, provider.open)
    key = JobKeys.key(done.job.id)
    await core.records.update(key, JobRecord, lambda now: replace(done.job, status="running", lease=lease))
    await scaler.run_once()
    assert len(provider.machines) == 1


async def test_a_provider_that_cannot_list_is_asked_for_nothing(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider(silent=True)
    await with_pool(core, min=1)
    await with_jobs(core, 2)
    scaler = Scaler(core, "one", SCOPE, provider.open)
    found = await scaler.run_once()
    assert (provider.asked, await machines(cluster, core)) == ([], [])
    assert (found[POOL].problem, found[POOL].wanted) == ("no answer", 2)
    provider.silent = False
    await scaler.run_once()
    assert len(provider.machines) == 2


async def test_a_request_that_waits_gives_way_to_the_next_zone(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider(full={"us-a"})
    await with_pool(core, zones=["us-a", "eu-b"], max=1)
    await with_jobs(core, 1)
    scaler = Scaler(core, "one", SCOPE, provider.open)
    for _ in range(20):
        found = await scaler.run_once()
        await asyncio.sleep(10)
    creates = [zone for verb, zone in provider.asked if verb == "create"]
    assert creates == ["us-a", "eu-b"]
    assert [listed.zone for listed in provider.machines.values()] == ["eu-b"]
    assert found[POOL].zones["us-a"].kind == "stockout"


async def test_machines_that_a_restored_root_does_not_know_are_kept_and_named(cluster: Cluster) -> None:
    """Those that are gone by their records are deleted, as before."""
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core, min=2)
    await Scaler(core, "one", SCOPE, provider.open).run_once()
    await Scaler(core, "one", SCOPE, provider.open).run_once()
    lost, gone = await machines(cluster, core)
    cluster.contents.remove(MachineKeys.key(POOL, lost.name))
    known = await core.records.read(MachineKeys.key(POOL, gone.name), MachineRecord)
    assert known is not None
    await core.records.write(known.key, MachineRecord, replace(gone, state="gone", ended_at=core.now()), known)
    scaler = Scaler(core, "two", SCOPE, provider.open)
    found = [(await scaler.run_once())[POOL] for _ in range(3)][-1]
    assert f"the records of 1 machines are missing ({lost.name})" in found.problem
    states = {m.name: m.state for m in await machines(cluster, core)}
    assert (states[lost.name], states[gone.name]) == (MachineState.STRAY, MachineState.GONE)
    assert [subject for verb, subject in provider.asked if verb == "delete"] == [gone.name]
    assert lost.name in provider.machines
