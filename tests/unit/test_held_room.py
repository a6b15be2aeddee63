"""The room that the bundles of several owners, and jobs within them, leave free on a host."""

from __future__ import annotations

import pytest

from fray_agents.agent.held import HeldBundle, HeldPlacement
from fray_agents.agent.leases import Leases
from fray_coordinator.protocol.placements.owners import owner_of_job, owner_of_reservation
from fray_coordinator.protocol.scheduling import HostKind, entry_of, shortage
from fray_coordinator.store.records import Stored
from fray_layouts.index_keys import PendingKey
from fray_layouts.records import JobRecord, Placement, ReservationRecord, ReservedPart, Resources
from fray_layouts.spec import DeviceSpec, EntrypointSpec, GangSpec, JobSpec, ResourceSpec
from fray_layouts.states import HoldingPhase

HOST = Resources(cpu=4000, memory=8 * 10**9, disk=10**11)
GPUS = Resources(cpu=16_000, memory=8 * 10**9, disk=10**11, device="gpu-h100", device_count=4)
TPU = Resources(cpu=16_000, memory=8 * 10**9, disk=10**11, device="tpu-v5litepod-16", device_count=4)


def gang(name: str, replicas: int, numbers: list[int], resources: ResourceSpec) -> HeldPlacement:
    """A placement of these replicas that waits for room."""
    spec = JobSpec(name=name, entrypoint=EntrypointSpec(command=["true"]), resources=resources, replicas=replicas)
    job = JobRecord(id=name, spec=spec, status="gathering", placement=Placement(round=1))
    owner = owner_of_job(job)
    bundles = tuple(HeldBundle(number=number, wants=owner.parts[0].shape) for number in numbers)
    return HeldPlacement(owner, Stored(owner.key, job, {}, "1", 0.0), bundles)


def reservation(resources: ResourceSpec) -> HeldPlacement:
    record = ReservationRecord(id="r", kind="reservation", parts=[ReservedPart(gang=GangSpec(resources=resources))])
    owner = owner_of_reservation(record)
    bundle = HeldBundle(number=0, wants=owner.parts[0].shape)
    return HeldPlacement(owner, Stored(owner.key, record, {}, "1", 0.0), (bundle,))


def single(name: str, resources: ResourceSpec) -> PendingKey:
    spec = JobSpec(name=name, entrypoint=EntrypointSpec(command=["true"]), resources=resources)
    return entry_of(JobRecord(id=name, spec=spec, status="pending"))


def test_bundles_of_several_owners_share_a_host() -> None:
    leases = Leases(HOST)
    first, second = gang("a", 8, [3, 5], ResourceSpec(cpu=1)), gang("b", 2, [0], ResourceSpec(cpu=2))
    for placement in (first, second):
        leases.add_placement(placement)
        assert leases.reserve(placement.bundles, HostKind())
        placement.phase = HoldingPhase.RESERVED
    assert leases.free().cpu == 0
    assert {owner: holding.bundles for owner, holding in leases.holdings().items()} == {"a": [3, 5], "b": [0]}
    leases.release(first)
    assert leases.free().cpu == 2000


def test_bundles_have_room_together_or_not_at_all() -> None:
    leases = Leases(HOST)
    leases.add(single("s", ResourceSpec(cpu=2)))
    placement = gang("a", 3, [0, 1, 2], ResourceSpec(cpu=1))
    leases.add_placement(placement)
    assert not leases.reserve(placement.bundles, HostKind())
    assert leases.free().cpu == 2000
    assert not any(bundle.taken for bundle in placement.bundles)
    assert leases.holdings().keys() == {"s"}


def test_room_that_becomes_free_is_kept_for_a_waiting_owner() -> None:
    leases = Leases(HOST)
    held = leases.add(single("s", ResourceSpec(cpu=3)))
    placement = gang("a", 2, [0, 1], ResourceSpec(cpu=1.5))
    leases.add_placement(placement)
    leases.remove(held)
    assert (leases.free().cpu, leases.unreserved().cpu) == (4000, 1000)
    assert leases.unreserved().memory == HOST.memory
    assert leases.reserve(placement.bundles, HostKind())
    assert leases.free().cpu == leases.unreserved().cpu == 1000


def test_a_refused_owner_keeps_nothing() -> None:
    leases = Leases(HOST)
    placement = gang("a", 2, [0], ResourceSpec(cpu=5))
    leases.add_placement(placement)
    placement.phase = HoldingPhase.REFUSED
    assert leases.unreserved() == leases.free() == HOST
    assert not leases.nothing_to_do(), "an agent that leaves lists nothing in its last beat"
    leases.release(placement)
    assert leases.nothing_to_do()


def test_a_bundle_with_a_tpu_has_all_chips_of_its_host() -> None:
    leases = Leases(TPU)
    wants = ResourceSpec(cpu=1, device=DeviceSpec(kind="tpu", variant="v5litepod-16", count=1))
    placement = gang("a", 4, [2], wants)
    leases.add_placement(placement)
    assert leases.reserve(placement.bundles, HostKind())
    assert leases.free().device_count == 0
    other = gang("b", 4, [0], wants)
    leases.add_placement(other)
    assert not leases.reserve(other.bundles, HostKind())


def test_bundles_have_gpus_of_their_own() -> None:
    leases = Leases(GPUS)
    wants = ResourceSpec(cpu=1, device=DeviceSpec(kind="gpu", variant="h100", count=1))
    first = leases.add(single("s", wants))
    placement = gang("a", 3, [0, 1, 2], wants)
    leases.add_placement(placement)
    assert leases.reserve(placement.bundles, HostKind())
    places = [bundle.gpus for bundle in placement.bundles]
    assert sorted([first.gpus, *places]) == [(0,), (1,), (2,), (3,)]
    assert leases.has_alone(placement.bundles[0], placement.bundles[0].gpus[0])
    more = gang("b", 2, [0], wants)
    leases.add_placement(more)
    assert not leases.reserve(more.bundles, HostKind())


@pytest.mark.parametrize("device", [None, DeviceSpec(kind="gpu", variant="h100", count=2)])
def test_jobs_in_a_reservation_take_of_it_and_not_of_the_host(device: DeviceSpec | None) -> None:
    leases = Leases(GPUS)
    placement = reservation(ResourceSpec(cpu=4, memory=10**9, device=device))
    leases.add_placement(placement)
    assert leases.reserve(placement.bundles, HostKind())
    outside = leases.free()
    one = DeviceSpec(kind="gpu", variant="h100", count=1) if device else None
    held = leases.add(single("inside", ResourceSpec(cpu=1, device=one)), placement)
    assert leases.free() == outside
    assert (leases.free(placement).cpu, leases.free(placement).device_count) == (3000, 1 if device else 0)
    assert set(held.gpus) <= set(placement.bundles[0].gpus)
    assert all(leases.has_alone(held, place) for place in held.gpus)
    assert shortage(single("large", ResourceSpec(cpu=1, memory=2 * 10**9)).shape, leases.free(placement), HostKind())
    leases.remove(held)
    assert leases.free(placement).cpu == 4000


def test_a_reservation_whose_jobs_are_abandoned_keeps_no_agent_that_leaves() -> None:
    leases, room = Leases(HOST), reservation(ResourceSpec(cpu=4))
    lease, inside = leases.add(single("s", ResourceSpec(cpu=1)), room), gang("g", 2, [0], ResourceSpec(cpu=1))
    inside.bundles[0].room = room
    for placement in (room, inside):
        leases.add_placement(placement)
        placement.phase = HoldingPhase.RUNNING
    lease.abandoned = True
    assert not leases.nothing_to_do()
    inside.abandoned = True
    assert leases.nothing_to_do(), "others go on with both once the agent is dead"
