"""Looks of the scaler beside agents and other scalers: whose jobs count as waiting, and when no call is made."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from fray_agents.provisioning.scaler import Scaler
from fray_coordinator.core import Core
from fray_coordinator.jobs.submission import submit
from fray_coordinator.protocol.scaling.machines import CALL_SECONDS
from fray_coordinator.store.interface import ABSENT
from fray_layouts.machine_keys import MachineKeys
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import AgentRecord, Holding, JobLease, JobRecord, MachineRecord
from fray_layouts.spec_parsing import parse_spec
from tests.support.memory_provider import MemoryProvider
from tests.support.virtual import Cluster, VirtualClock, Way
from tests.unit.test_scaler import HOST, POOL, with_jobs, with_pool


async def with_silent_agent(core: Core, state: str, job: dict[str, Any], **fields: Any) -> None:
    """An agent that was last heard of an hour ago, or that somebody has declared dead, and what it runs."""
    spec = parse_spec({"name": "j", "pool": POOL, "entrypoint": {"command": ["true"]}, **job})
    record = JobRecord(
        id="j-1",
        spec=spec,
        status="running",
        lease=JobLease(agent="a", host="h", since=core.now()),
        driver="driver" in fields,
    )
    holdings = {"j-1": Holding(attempt=1, phase="running")}
    agent = AgentRecord(id="a", host="h", pool=POOL, state=state, capacity=HOST, holdings=holdings, **fields)
    await core.records.put(AgentKeys.key("a"), agent, ABSENT)
    await core.records.put(JobKeys.key("j-1"), record, ABSENT)
    await asyncio.sleep(0 if state == "dead" else 3500)


@pytest.mark.parametrize(
    ("state", "job", "fields", "machines"),
    [
        ("live", {}, {}, 1),
        ("dead", {}, {}, 1),
        ("dead", {}, {"reaped": True}, 0),
        ("live", {"replicas": 2}, {}, 0),
        ("live", {}, {"driver": True}, 0),
    ],
)
async def test_a_job_whose_agent_was_lost_waits_though_nobody_has_put_it_back(
    cluster: Cluster, state: str, job: dict[str, Any], fields: dict[str, Any], machines: int
) -> None:
    """A gang waits as an owner once it is put back; a program that has ended needs no machine."""
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core)
    await with_silent_agent(core, state, job, **fields)
    await Scaler(core, "one", provider.open).look()
    assert len(provider.machines) == machines


async def test_a_job_that_is_claimed_during_a_look_waits_no_more(cluster: Cluster) -> None:
    """Its agent may have come after the look had read the agents."""
    core, provider = await cluster.core(), MemoryProvider(slow=20.0)
    await with_pool(core)
    (done,) = await submit(core, [parse_spec({"name": "j", "pool": POOL, "entrypoint": {"command": ["true"]}})])
    looking = asyncio.create_task(Scaler(core, "one", provider.open).look())
    await asyncio.sleep(10)
    lease = JobLease(agent="new", host="h", since=core.now())
    key = JobKeys.key(done.job.id)
    await core.records.update(key, JobRecord, lambda now: replace(done.job, status="running", lease=lease))
    await looking
    assert provider.asked == []


async def asked_late(cluster: Cluster, meanwhile: Any) -> tuple[Scaler, MemoryProvider]:
    """A look in which something happens just before the record of its machine is written as asked for."""
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core, max=1)
    await with_jobs(core, 1)
    way: Way = cluster.ways[-1]
    put = ("put", MachineKeys.folder(POOL))

    async def wanted() -> None:
        way.before[put] = meanwhile

    way.before[put] = wanted
    scaler = Scaler(core, "one", provider.open)
    await scaler.look()
    return scaler, provider


async def test_a_scaler_that_was_frozen_before_its_call_does_not_make_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def suspended() -> None:
        wall = cluster.clock.wall()
        monkeypatch.setattr(VirtualClock, "wall", lambda clock: wall)  # it is set right only later
        await asyncio.sleep(CALL_SECONDS)

    scaler, provider = await asked_late(cluster, suspended)
    monkeypatch.undo()
    assert provider.asked == []
    await scaler.look()
    assert provider.asked == [("create", "")]


async def test_a_machine_that_another_scaler_has_given_up_meanwhile_is_not_asked_for(cluster: Cluster) -> None:
    other = await cluster.core()

    async def gives_up() -> None:
        (key,) = cluster.keys(MachineKeys.folder(POOL))
        await other.records.change(key, MachineRecord, lambda now: replace(now, state="deleting"))

    _, provider = await asked_late(cluster, gives_up)
    assert [verb for verb, _ in provider.asked] == ["delete"]


async def test_what_a_provider_answers_is_kept(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core)
    await with_jobs(core, 1)
    await Scaler(core, "one", provider.open).look()
    (key,) = cluster.keys(MachineKeys.folder(POOL))
    found = await core.records.read(key, MachineRecord)
    assert found is not None
    assert (found.record.operation, found.record.created_at) == ("operation", core.now())
