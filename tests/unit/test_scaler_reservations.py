"""Reservations in pools of machines: the hosts that they need or have lost make machines."""

from __future__ import annotations

from typing import Any
from unittest import mock

import msgspec
import pytest
from msgspec.structs import replace

from fray_agents.provisioning import cluster_view, scaler
from fray_agents.provisioning.scaler import Scaler
from fray_coordinator.core import Core
from fray_coordinator.jobs.waiting import WaitingReasons
from fray_coordinator.jobs.why_machines import machines_for
from fray_coordinator.jobs.why_waiting import reservations_around, why_waiting
from fray_coordinator.placements import reservations
from fray_coordinator.protocol.scaling import demand
from fray_coordinator.protocol.scaling.provisioning import ScalingScope
from fray_coordinator.store.interface import ANY
from fray_layouts.index_keys import PlacementKey
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
from tests.support.unforeseen import raising_for
from tests.support.virtual import Cluster

HOST = Resources(cpu=4000, memory=2**33, disk=2**33)
POOL = "burst"
SCOPE = ScalingScope(named=frozenset({POOL, "odd"}))
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
    return await reservations.create(core, ReservationRecord(**({"id": "r-1"} | usual | fields)))


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
    await Scaler(core, "one", SCOPE, provider.open).run_once()
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
    await Scaler(core, "one", SCOPE, MemoryProvider().open).run_once()
    await core.clock.sleep(core.settings.pass_interval)
    await reasons.update([job])
    assert "on the way" in reasons.text, "who waits sees at once that somebody looks after the pool"


@pytest.mark.parametrize("fields", [{"same": "rack"}, {"low": 10**12}, {"parts": []}], ids=["same", "low", "parts"])
async def test_a_reservation_that_contradicts_itself_keeps_no_pool_from_its_machines(
    core: Core, fields: dict[str, Any]
) -> None:
    await reserve(core)
    odd = msgspec.to_builtins(ReservationRecord(id="odd", kind="reservation", pool=POOL, state="held", low=1)) | fields
    await core.store.put(ReservationKeys.key("odd"), msgspec.json.encode(odd), ANY)
    await core.store.put(PlacementKey(POOL, 0, 1.0, "odd", "reservation").key(), b"{}", ANY)
    assert await made(core) == ["us-a", "us-a"]


DECISIONS: list[tuple[object, str]] = [
    (cluster_view, "lacking_units"),
    (demand._Packing, "serve_owner"),
    (demand._Packing, "_take_placed"),
]


@pytest.mark.parametrize(("where", "function"), DECISIONS, ids=[name for _, name in DECISIONS])
async def test_an_error_in_a_decision_on_one_owner_keeps_no_pool_from_its_machines(
    core: Core, where: object, function: str
) -> None:
    wanted = await reserve(core, id="odd", low=1)
    if function != "serve_owner":
        await hold(core, wanted, "a")
    await reserve(core, id="r-2")
    with raising_for("odd", where, function):
        provider = MemoryProvider()
        found = await Scaler(core, "one", SCOPE, provider.open).run_once()
    assert [machine.zone for machine in provider.machines.values()] == ["us-a", "us-a"]
    assert "unforeseen" in found[POOL].problem or function == "lacking_units"


async def test_an_error_in_the_settings_of_one_pool_is_told_and_the_others_are_scaled(core: Core) -> None:
    odd = ProvisioningSpec(provider="command", capacity=HOST, max=3)
    await core.records.write(PoolKeys.record("odd"), AgentPoolRecord, AgentPoolRecord(provisioning=odd), None)
    await reserve(core)
    real = scaler.accounts

    def accounts(spec: ProvisioningSpec | None, *rest: Any) -> Any:
        if spec == odd:
            raise KeyError("unforeseen")
        return real(spec, *rest)

    with mock.patch.object(scaler, "accounts", accounts):
        provider = MemoryProvider()
        found = await Scaler(core, "one", SCOPE, provider.open).run_once()
    assert (len(provider.machines), "unforeseen" in found["odd"].problem) == (2, True)
