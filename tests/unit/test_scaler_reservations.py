"""Reservations in pools of machines: the hosts that they need or have lost make machines."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fray_agents.provisioning.scaler import Scaler
from fray_coordinator.core import Core
from fray_coordinator.jobs.waiting_reasons import WaitingReasons
from fray_coordinator.jobs.why_in_reservation import reservations_around
from fray_coordinator.jobs.why_machines import machines_for
from fray_coordinator.jobs.why_waiting import why_waiting
from fray_coordinator.placements import reservations
from fray_layouts.object_keys import AgentKeys, JobKeys, PoolKeys, ReservationKeys
from fray_layouts.records import (
    AgentPoolRecord,
    AgentRecord,
    JobRecord,
    Placement,
    PlacementMember,
    ProvisioningSpec,
    ReservationRecord,
    ReservedPart,
    Resources,
)
from fray_layouts.spec import GangSpec, ResourceSpec
from fray_layouts.spec_parsing import parse_spec
from tests.support.memory_provider import MemoryProvider
from tests.support.virtual import Cluster

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)
POOL = "burst"
ZONES = ["us-a", "eu-b"]


@pytest.fixture
async def core(cluster: Cluster) -> Core:
    core = await cluster.core()
    spec = ProvisioningSpec(provider="command", capacity=HOST, max=4, zones=ZONES)
    await core.records.write(PoolKeys.record(POOL), AgentPoolRecord, AgentPoolRecord(provisioning=spec), None)
    return core


async def reserve(core: Core, *jobs: str, **fields: Any) -> ReservationRecord:
    """A reservation of whole hosts: one for each of the jobs, or two for any jobs."""
    gang = GangSpec(resources=ResourceSpec(cpu=4.0))
    parts = [ReservedPart(gang=gang, job=job) for job in jobs] or [ReservedPart(gang=replace(gang, count=2))]
    usual: dict[str, Any] = {"kind": "reservation", "pool": POOL, "namespace": "team", "low": 2, "parts": parts}
    return await reservations.create(core, ReservationRecord(id="r-1", **(usual | fields)))


async def hold(core: Core, record: ReservationRecord, *agents: str) -> None:
    """Mark it as held, with its bundles on these agents, of which only the first lives."""
    members = [PlacementMember(agent=agent, bundles=[number]) for number, agent in enumerate(agents)]
    key = ReservationKeys.key(record.id)
    held = replace(record, state="held", placement=Placement(round=1, members=members))
    await core.records.write(key, ReservationRecord, held, await core.records.read(key, ReservationRecord))
    live = AgentRecord(
        id=agents[0], host="h", pool=POOL, zone="eu-b", capacity=HOST, free=Resources(), supports_placements=True
    )
    await core.records.write(AgentKeys.key(live.id), AgentRecord, live, None)


async def made(core: Core) -> list[str]:
    """The zones of the machines that a run makes."""
    provider = MemoryProvider()
    await Scaler(core, "one", provider.open).run_once()
    return [machine.zone for machine in provider.machines.values()]


async def test_a_reservation_that_forms_makes_machines(core: Core) -> None:
    await reserve(core)
    assert await made(core) == ["us-a", "us-a"]


async def test_a_held_reservation_that_has_lost_a_host_makes_another(core: Core) -> None:
    await hold(core, await reserve(core), "a", "b")
    assert await made(core) == ["us-a"]


async def test_a_lost_host_of_a_one_zone_reservation_is_replaced_in_that_zone(core: Core) -> None:
    await hold(core, await reserve(core, same="zone"), "a", "b")
    assert await made(core) == ["eu-b"]


async def test_a_held_reservation_makes_no_machine_that_it_does_not_need(core: Core) -> None:
    await hold(core, await reserve(core, low=1), "a")
    assert await made(core) == []


async def test_a_groups_lost_host_is_not_replaced_for_a_job_that_has_ended(core: Core) -> None:
    job = JobRecord(id="b-1", spec=parse_spec({"name": "b", "entrypoint": {"command": ["x"]}}), status="succeeded")
    await core.records.write(JobKeys.key(job.id), JobRecord, job, None)
    await hold(core, await reserve(core, "a-1", "b-1", kind="group"), "a", "b")
    assert await made(core) == []


@pytest.mark.parametrize("pool", ["~r-1", "~group-1"])
async def test_a_job_in_a_reservation_waits_for_the_machines_of_its_pool(core: Core, pool: str) -> None:
    await reserve(core)
    await reservations.create(core, ReservationRecord(id="group-1", kind="group", pool="~r-1", namespace="team"))
    spec = parse_spec({"name": "j", "entrypoint": {"command": ["x"]}, "pool": pool})
    job = JobRecord(id="j-1", spec=spec, status="pending")
    around = await reservations_around(core, [job])
    machines = await machines_for(core, [job], around)
    assert [*machines] == [POOL]
    forming = (
        "its reservation r-1 does not have its minimum of places yet: no live agent in pool burst: its pool may have"
    )
    assert (forming in why_waiting(job, [], core.now(), around, machines)) == (pool == "~r-1")


async def test_a_wait_for_a_job_in_a_reservation_becomes_one_for_machines(core: Core) -> None:
    await reserve(core)
    begun: list[bool] = []
    reasons = WaitingReasons(core, lambda: begun.append(True))
    spec = parse_spec({"name": "j", "entrypoint": {"command": ["x"]}, "pool": "~r-1"})
    job = JobRecord(id="j-1", spec=spec, status="pending")
    await reasons.update([job])
    await core.clock.sleep(3.0)
    await reasons.update([job])
    assert begun == [True]
    assert "no scaler has looked at it yet" in reasons.text
    await Scaler(core, "one", MemoryProvider().open).run_once()
    await core.clock.sleep(core.settings.pass_interval)
    await reasons.update([job])
    assert "on the way" in reasons.text, "who waits sees at once that somebody looks after the pool"
