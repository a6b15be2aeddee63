"""Decisions about reservations and launch groups: which jobs go in, which stand alone, when they end."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fray_coordinator.protocol.placements.assignment import assign
from fray_coordinator.protocol.placements.hosts import HostView, Room
from fray_coordinator.protocol.placements.launching import (
    bundles_of_job,
    check_can_ever_fit,
    common_pool,
    given_up,
    is_given_up,
)
from fray_coordinator.protocol.placements.owners import Owner, owner_of_reservation
from fray_coordinator.protocol.placements.reservations import (
    end_reason,
    ended,
    goes_into,
    private_views,
    renewed,
    units_of,
    with_members,
)
from fray_layouts.errors import InvalidInput
from fray_layouts.records import (
    AgentRecord,
    ClusterSettings,
    Holding,
    JobRecord,
    Placement,
    PlacementMember,
    ReservationRecord,
    ReservedPart,
    Resources,
)
from fray_layouts.spec import DeviceSpec, GangSpec, JobSpec, ResourceSpec
from fray_layouts.spec_parsing import parse_spec

NOW = 5000.0
TPU = DeviceSpec(kind="tpu", variant="v5litepod-16", count=4)


def reservation(*gangs: GangSpec, low: int = 1, **fields: Any) -> ReservationRecord:
    parts = [ReservedPart(gang=gang) for gang in gangs or (GangSpec(count=3),)]
    usual: dict[str, Any] = {"kind": "reservation", "namespace": "team", "ttl": 100.0, "expires_at": NOW + 100}
    return ReservationRecord(id="r-1", parts=parts, low=low, submitted_at=NOW, **(usual | fields))


def group(*jobs: str, **fields: Any) -> ReservationRecord:
    parts = [ReservedPart(gang=GangSpec(), job=job) for job in jobs]
    return ReservationRecord(id="g-1", kind="group", parts=parts, low=len(jobs), submitted_at=NOW, **fields)


def placed(record: ReservationRecord, **agents: list[int]) -> ReservationRecord:
    members = [PlacementMember(agent=agent, bundles=bundles) for agent, bundles in agents.items()]
    return replace(record, state="held", placement=Placement(round=3, members=members))


def spec(**fields: Any) -> JobSpec:
    return parse_spec({"name": "j", "entrypoint": {"command": ["x"]}, "namespace": "team", **fields})


def job(job_id: str, status: str) -> JobRecord:
    return JobRecord(id=job_id, spec=spec(), status=status)


def tpu(replicas: int, slices: int) -> dict[str, Any]:
    device = {"kind": "tpu", "variant": "v5litepod-16", "count": 4}
    return {"replicas": replicas, "slices": slices, "resources": {"device": device}}


def test_a_job_goes_into_the_reservation_of_its_namespace_that_has_its_device_and_room() -> None:
    cpu = reservation(GangSpec(resources=ResourceSpec(cpu=2.0, memory=10**9), count=2))
    assert goes_into(spec(), cpu)
    assert not goes_into(spec(resources={"cpu": 4}), cpu), "it is larger than a bundle"
    assert not goes_into(spec(namespace="others"), cpu)
    assert not goes_into(spec(pool="elsewhere"), cpu)
    assert not goes_into(spec(**tpu(4, 1)), cpu), "the reservation has no such device"
    assert not goes_into(spec(), replace(cpu, state="ended"))
    assert not goes_into(spec(), replace(cpu, kind="group")), "a group is for its own jobs"


def test_a_reservation_of_slices_takes_gangs_of_at_most_as_many_and_no_job_without_one() -> None:
    slices = reservation(GangSpec(resources=ResourceSpec(device=TPU), count=8, slices=2), low=8)
    assert goes_into(spec(**tpu(4, 1)), slices)
    assert goes_into(spec(**tpu(8, 2)), slices)
    assert not goes_into(spec(**tpu(12, 3)), slices)
    assert not goes_into(spec(), slices), "a job without a device would keep a slice from others"


def test_a_job_that_must_not_be_preempted_goes_only_where_no_host_is_taken_away() -> None:
    kept = reservation(GangSpec(resources=ResourceSpec(preemptible=False)))
    assert not goes_into(spec(resources={"preemptible": False}), reservation())
    assert goes_into(spec(resources={"preemptible": False}), kept)


def test_a_group_ends_when_a_job_ends_before_it_is_held_and_when_all_have_ended_after_that() -> None:
    forming = group("a", "b")
    assert not end_reason(forming, {"other"}, None, NOW)
    assert "job b ended before" in end_reason(forming, {"b"}, None, NOW)
    held = replace(forming, state="held")
    assert not end_reason(held, {"b"}, None, NOW)
    assert "all" in end_reason(held, {"a", "b"}, None, NOW)


def test_a_reservation_ends_with_its_time_and_with_its_parent_s_attempt() -> None:
    record = reservation(parent="p-1", parent_attempt=2)
    parent = replace(job("p-1", "running"), attempt=2)
    assert not end_reason(record, (), parent, NOW)
    assert "not renewed" in end_reason(record, (), parent, NOW + 100)
    for other in (None, replace(parent, attempt=3), replace(parent, status="failed")):
        assert "p-1" in end_reason(record, (), other, NOW)
    assert not end_reason(replace(record, state="ended"), (), None, NOW + 100), "it ends once"


def test_a_renewal_begins_the_time_anew_and_revives_nothing() -> None:
    later = renewed(reservation(), NOW + 50)
    assert later is not None
    assert later.expires_at == NOW + 150
    longer = renewed(reservation(), NOW, 500.0)
    assert longer is not None
    assert (longer.ttl, longer.expires_at) == (500.0, NOW + 500)
    over = ended(reservation(), NOW, "released")
    assert over is not None
    assert (over.state, over.ended_at, over.reason) == ("ended", NOW, "released")
    assert renewed(over, NOW) is None
    assert ended(over, NOW, "again") is None


def units(record: ReservationRecord, live: str, used: str = "", done: str = "") -> dict[int, Owner]:
    found = units_of(record, live.split(), used.split(), done.split())
    return {int(unit.id.rpartition("~")[2]): unit for unit in found}


def again(record: ReservationRecord, found: dict[int, Owner]) -> ReservationRecord | None:
    """The record after a pass that found all units unchanged."""
    return with_members(record, {unit.id: unit.placement.members for unit in found.values()})


def forming(found: dict[int, Owner]) -> set[int]:
    return {first for first, unit in found.items() if unit.forming}


def test_each_bundle_of_a_held_reservation_stands_alone() -> None:
    held = placed(reservation(GangSpec(count=2), GangSpec(count=2), low=2), a=[0], b=[1], c=[2])
    found = units(held, "a b c")
    assert sorted(found) == [0, 1, 2, 3]
    assert forming(found) == {2, 3}, "above the minimum one goes to an earlier owner, unless a job uses it"
    assert forming(units(held, "a b c", used="c")) == {3}
    lost = units(held, "a c", used="c")
    assert forming(lost) == {1, 3}
    assert not lost[1].placement.members


def test_a_unit_that_can_have_no_host_now_loses_its_members_and_is_given_none() -> None:
    held = placed(reservation(GangSpec(count=2), low=2), a=[0], b=[1])
    first, second = units_of(held, {"a", "b"}, set(), refusing={"b"})
    assert not first.forming
    assert second.forming
    assert not second.placement.members
    assert second.placement.refused == ["b"]
    after = with_members(held, {first.id: first.placement.members, second.id: ()})
    assert after is not None
    assert after.placement.refused == [], "it is asked again once it does not refuse"


def test_a_slice_stands_as_a_whole() -> None:
    gang = GangSpec(resources=ResourceSpec(device=TPU), count=4, slices=2)
    held = placed(reservation(gang, low=4), a=[0], b=[1], c=[2], d=[3])
    assert forming(units(held, "a b c d")) == set()
    broken = units(held, "a b d")
    assert forming(broken) == {2}
    assert [(part.count, part.slices) for part in broken[2].parts] == [(2, 1)]


@pytest.mark.parametrize("how", [{"spread": True}, {"same": "zone"}])
def test_the_bundles_of_a_gang_that_must_be_placed_together_are_given_anew_together(how: dict[str, Any]) -> None:
    held = placed(reservation(GangSpec(count=2, **how), GangSpec(count=1), low=3), a=[0], b=[1], c=[2])
    found = units(held, "a c")
    assert forming(found) == {0}
    assert [(part.count, part.same, part.spread) for part in found[0].parts] == [
        (2, how.get("same", ""), how.get("spread", False))
    ]


def zoned(name: str, zone: str) -> HostView:
    return HostView(agent=name, pool="default", capacity=Resources(cpu=1000), zone=zone)


@pytest.mark.parametrize(
    ("same", "live", "hosts", "after"),
    [
        ("zone", "a", {"a": "z1", "b": "z2", "c": "z1"}, {"a": [0], "c": [1]}),
        ("zone", "a", {"a": "z1", "b": "z2"}, {"a": [0]}),
        ("", "a", {"a": "z1", "b": "z2"}, {"a": [0], "b": [1]}),
        ("zone", "", {"b": "z1", "c": "z2", "d": "z2"}, {"c": [0], "d": [1]}),
        ("zone", "", {"b": "z1", "c": "z2"}, {}),
    ],
)
def test_the_bundles_of_a_group_stay_in_one_zone_when_hosts_are_lost(
    same: str, live: str, hosts: dict[str, str], after: dict[str, list[int]]
) -> None:
    held = placed(group("x", "y", same=same), a=[0], gone=[1])
    found = units_of(held, live.split(), set(), places=hosts)
    given = assign([zoned(name, zone) for name, zone in hosts.items()], found)
    members = {unit.id: given[unit.id].members if unit.forming else unit.placement.members for unit in found}
    now = with_members(held, members)
    assert {m.agent: m.bundles for m in (now or held).placement.members} == after


def test_the_bundles_of_a_job_that_has_ended_are_free_for_others() -> None:
    held = placed(group("x", "y"), a=[0], b=[1])
    found = units(held, "a b", done="x")
    assert sorted(found) == [1]
    after = again(held, found)
    assert after is not None
    assert [(m.agent, m.bundles) for m in after.placement.members] == [("b", [1])]
    assert after.placement.round == 4
    assert again(after, units(after, "a b", done="x")) is None


def test_jobs_have_room_in_the_bundles_that_an_agent_still_lists_and_none_of_theirs_uses() -> None:
    owner = owner_of_reservation(placed(reservation(GangSpec(resources=ResourceSpec(cpu=2.0), count=3)), a=[0, 1]))
    host = HostView(agent="a", pool="default", capacity=Resources(cpu=8000))

    def view(phase: str, bundles: list[int]) -> HostView:
        agent = AgentRecord(id="a", host="a", pool="default")
        agent.holdings[owner.id] = Holding(attempt=owner.attempt, phase=phase, bundles=bundles)
        [found] = private_views(owner, {"a": host}, {"a": agent})
        return found

    assert (view("reserved", [0, 1]).capacity.cpu, view("reserved", [0, 1]).busy) == (4000, Room())
    assert view("reserved", [1, 2]).capacity.cpu == 2000
    assert view("running", [0]).busy == view("running", [0]).room


def test_units_on_one_agent_are_one_member() -> None:
    held = placed(reservation(GangSpec(count=3), low=3), a=[0, 2], b=[1])
    assert again(held, units(held, "a b")) is None


def test_a_group_is_given_up_only_when_no_submitter_can_still_create_it() -> None:
    settings = ClusterSettings(quarantine=600.0)
    assert not is_given_up(NOW, NOW + 600 + 3600, settings)
    assert is_given_up(NOW, NOW + 600 + 3601, settings)
    record = given_up("g-1", "default", NOW, NOW + 5000)
    assert (record.state, record.kind, record.pool) == ("ended", "group", "default")


def test_a_group_takes_agents_of_one_pool_and_has_a_job_at_least() -> None:
    assert common_pool([spec(pool="x"), spec(pool="x")]) == "x"
    with pytest.raises(InvalidInput, match="one pool"):
        common_pool([spec(pool="x"), spec(pool="y")])
    with pytest.raises(InvalidInput, match="at least one request"):
        common_pool([])


def agent(cpu: int, device: str = "", chips: int = 0) -> AgentRecord:
    capacity = Resources(cpu=cpu, memory=2**40, disk=2**40, device=device, device_count=chips)
    return AgentRecord(id="a", host="h", pool="default", capacity=capacity)


def test_a_request_larger_than_every_host_of_its_kind_is_refused_with_its_place_and_shortage() -> None:
    specs = [spec(), spec(resources={"cpu": 64})]
    parts = [bundles_of_job(one, f"j-{number}") for number, one in enumerate(specs)]
    owner = owner_of_reservation(ReservationRecord(id="g-1", kind="group", parts=parts, low=2))
    with pytest.raises(InvalidInput, match=r"requests\[1\].*64 cores wanted, 4 here"):
        check_can_ever_fit(owner, [agent(4000), agent(2000)])
    check_can_ever_fit(owner, [agent(4000), agent(64000)])
    check_can_ever_fit(owner, [])


def test_a_group_waits_for_slices_that_are_not_there() -> None:
    parts = [bundles_of_job(spec(**tpu(4, 1)), "j-1")]
    owner = owner_of_reservation(ReservationRecord(id="g-1", kind="group", parts=parts, low=4))
    check_can_ever_fit(owner, [agent(4000)])
    with pytest.raises(InvalidInput, match="tpu-v5litepod-16"):
        check_can_ever_fit(owner, [agent(4000, "tpu-v5litepod-16", 1)])
