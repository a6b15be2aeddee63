"""The command line's view of agents that keep room, are in slices, or contradict each other."""

from __future__ import annotations

from typing import Any

from fray.cli.agent_view import Hold, conflicts, holds_of, jobs_at_work, place_text
from fray_coordinator.protocol.placements.owners import Owner, owner_of_job, owner_of_reservation
from fray_layouts.records import (
    AgentRecord,
    Holding,
    JobRecord,
    Placement,
    PlacementMember,
    ReservationRecord,
    SliceMember,
)
from fray_layouts.spec import EntrypointSpec, JobSpec


def gang(name: str, status: str = "gathering", until: float | None = None) -> Owner:
    """A gang in its second round, with two replicas on agent "a"."""
    spec = JobSpec(name=name, entrypoint=EntrypointSpec(command=["x"]), replicas=4)
    placement = Placement(round=2, members=[PlacementMember(agent="a", bundles=[0, 3])], until=until)
    return owner_of_job(JobRecord(id=name, spec=spec, status=status, placement=placement))


def agent(name: str = "a", slice: SliceMember | None = None, **holdings: Holding) -> AgentRecord:
    return AgentRecord(id=name, host="h", pool="default", holdings=holdings, slice=slice)


def test_room_is_kept_for_gathering_gangs() -> None:
    reserved = agent(g=Holding(attempt=1, phase="reserved", round=2))
    assert holds_of(reserved, [gang("g")]) == [Hold("g", 2, True, None)]
    assert holds_of(agent(), [gang("g", until=9.0)]) == [Hold("g", 2, False, 9.0)]
    of_another_round = agent(g=Holding(attempt=1, phase="reserved", round=1))
    assert holds_of(of_another_round, [gang("g")]) == [Hold("g", 2, False, None)]
    assert holds_of(agent("b"), [gang("g")]) == []
    assert holds_of(agent(), [gang("g", "running")]) == []


def test_it_is_said_for_how_long() -> None:
    assert Hold("g", 2, True, 100.0).text(40.0) == "g (reserved)"
    assert Hold("g", 2, False, 100.0).text(40.0) == "g (until there is room, for at most 1m0s)"
    assert Hold("g", 2, False, None).text(40.0) == "g (until there is room)"
    assert Hold("g", 2, False, 30.0).text(40.0) == "g (until there is room)"


def test_votes_are_no_jobs() -> None:
    phases = {"s": "running", "c": "claiming", "v": "reserved", "r": "refused"}
    holdings: dict[str, Any] = {name: Holding(attempt=1, phase=phase) for name, phase in phases.items()}
    assert jobs_at_work(agent(**holdings), []) == 2


def test_a_gang_that_has_started_is_a_job_though_the_last_heartbeat_lists_its_vote() -> None:
    voted = agent(g=Holding(attempt=1, phase="reserved", round=2))
    assert jobs_at_work(voted, [gang("g")]) == 0
    assert jobs_at_work(voted, [gang("g", "running")]) == 1
    of_another_round = agent(g=Holding(attempt=1, phase="reserved", round=1))
    assert jobs_at_work(of_another_round, [gang("g", "running")]) == 0


def test_a_reservation_is_no_job() -> None:
    record = ReservationRecord(id="r", pool="default", state="held", kind="reservation")
    used = agent(r=Holding(attempt=1, phase="running"), s=Holding(attempt=1, phase="running"))
    assert jobs_at_work(used, [owner_of_reservation(record)]) == 1


def test_the_place_of_a_host() -> None:
    record = agent(slice=SliceMember(id="blue", type="v5litepod-16", index=2, hosts=4))
    record.zone, record.labels = "z-a", {"disk": "ssd"}
    assert place_text(record) == "worker 2 of 4 in slice blue, zone z-a, disk=ssd"
    assert place_text(agent(slice=SliceMember(id="alone", type="v5litepod-4"))) == ""


def test_two_agents_that_say_that_they_are_the_same_worker_are_told() -> None:
    blue = [SliceMember(id="blue", type="v5litepod-16", index=index, hosts=4) for index in range(2)]
    told = conflicts([agent("a", blue[0]), agent("b", blue[1]), agent("c", blue[1]), agent("d"), agent("e")])
    assert set(told) == {"b", "c"}
    assert told["b"] == "worker 1 of slice blue is also c; give each host its own --worker"
