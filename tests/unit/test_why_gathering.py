"""Why a gang waits: the sentence names the agents that are short, the resource, and the remedy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from fray_coordinator.jobs.why_waiting import why_stuck, why_waiting
from fray_layouts.records import (
    AgentRecord,
    Holding,
    JobRecord,
    Placement,
    PlacementMember,
    ReservationRecord,
    ReservedPart,
    Resources,
    SliceMember,
)
from fray_layouts.spec import GangSpec, ResourceSpec
from fray_layouts.spec_parsing import parse_spec

NOW = 1000.0
TPU = {"device": {"kind": "tpu", "variant": "v5litepod-16", "count": 4}}
SLICES = {"resources": TPU, "replicas": 8, "slices": 2}


def a_gang(members: list[PlacementMember] | None = None, **fields: Any) -> JobRecord:
    spec = parse_spec({"name": "g", "entrypoint": {"command": ["x"]}, "replicas": 4, **fields})
    placement = Placement(round=3, members=members or [])
    return JobRecord(id="g-1", spec=spec, status="gathering", submitted_at=NOW, placement=placement)


def an_agent(name: str, cores: int = 2, **fields: Any) -> AgentRecord:
    room = Resources(cpu=cores * 1000, memory=16 * 10**9, disk=10**12)
    base: dict[str, Any] = {
        "id": name,
        "host": name,
        "pool": "default",
        "capacity": room,
        "free": room,
        "supports_placements": True,
    }
    return AgentRecord(**(base | fields))


def a_worker(slice_id: str, index: int) -> AgentRecord:
    room = Resources(cpu=8000, memory=2**34, disk=10**12, device="tpu-v5litepod-16", device_count=4)
    place = SliceMember(id=slice_id, type="v5litepod-16", index=index, hosts=4)
    return an_agent(f"{slice_id}-{index}", capacity=room, free=room, slice=place)


@dataclass
class Case:
    live: list[AgentRecord]
    says: str
    wants: dict[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize(
    "case",
    [
        Case([], "no live agent in pool default; start one with `fray agent --pool default`"),
        Case(
            [an_agent("a", drain=True), an_agent("b", supports_placements=False)],
            "each live agent of pool default is drained, unfit, or of a version without gangs: a is one",
        ),
        Case(
            [*(a_worker("s1", n) for n in range(3)), replace(a_worker("s1", 3), unfit=True, problem="a chip is held")],
            "1 slice of v5litepod-16 is wanted, 0 whole there (s1 lacks 1 of 4 hosts); start agents on every host of a "
            "slice; unfit: s1-3 (a chip is held)",
            {**SLICES, "replicas": 4, "slices": 1},
        ),
        Case(
            [an_agent("a"), an_agent("b", 1)],
            "no live agent of pool default could ever run a replica of 4: a comes closest of 2 (cpu: 3 cores wanted, "
            "2 here); ask for less, or start an agent that has it",
            {"resources": {"cpu": 3}},
        ),
        Case(
            [an_agent("a"), an_agent("b", 1)],
            "4 are wanted at once, and the 2 live agents of pool default that could run a replica have room for 3; "
            "ask for less, or start more agents",
        ),
        Case(
            [an_agent("a", 4), an_agent("b", 4)],
            "4 are wanted at once on agents of their own, and the 2 live agents of pool default that could run a "
            "replica have room for 2; ask for less, or start more agents",
            {"spread": True},
        ),
        Case(
            [an_agent("a", 4, zone="x", region="r")],
            "no live agent of pool default could ever run a replica of 4: a (zone: y wanted, x here); ask for less, or "
            "start an agent that has it",
            {"resources": {"zone": "y"}},
        ),
        Case(
            [an_agent("a", 4)],
            "no agent that could run it states its zone; start agents with --zone NAME",
            {"same": "zone"},
        ),
        Case(
            [an_agent("a", zone="x"), an_agent("b", zone="y")],
            "the live agents of pool default have no room for all of it at once in one zone",
            {"same": "zone"},
        ),
        Case(
            [*(a_worker("s1", n) for n in range(4)), a_worker("s2", 0), a_worker("s2", 2)],
            "2 slices of v5litepod-16 are wanted, 1 whole there (s2 lacks 2 of 4 hosts); start agents on every host of "
            "a slice",
            SLICES,
        ),
        Case(
            [an_agent("a", 4)],
            "there are agents for all of it, but others that come before it have them, or it was not looked at yet",
        ),
    ],
)
def test_a_gang_without_members_names_the_missing_resource(case: Case) -> None:
    assert why_waiting(a_gang(**case.wants), case.live, NOW) == case.says


MEMBERS = [PlacementMember(agent=name, host=name, bundles=[n]) for n, name in enumerate("abcd")]
READY = Holding(attempt=1, phase="reserved", round=3)


def voted(name: str, bundle: int, **fields: Any) -> AgentRecord:
    return an_agent(name, holdings={"g-1": replace(READY, bundles=[bundle])}, **fields)


def busy(**fields: Any) -> AgentRecord:
    return an_agent("d", holdings={"x-1": Holding(attempt=1, phase="running", **fields)})


@pytest.mark.parametrize(
    ("last", "says"),
    [
        ([voted("d", 3)], "all of its 4 agents keep room for it; it should start soon"),
        ([], "3 of 4 agents keep room for it; d does not yet: it was not heard of lately"),
        ([an_agent("d")], "3 of 4 agents keep room for it; d does not yet: it has not answered"),
        ([busy()], "3 of 4 agents keep room for it; d does not yet: 1 job there must end first (x-1)"),
        (
            [busy(ends_by=NOW + 40)],
            "3 of 4 agents keep room for it; d does not yet: 1 job there must end first, in 40 s at the latest (x-1)",
        ),
        (
            [an_agent("d", holdings={"g-1": replace(READY, phase="refused")})],
            "3 of 4 agents keep room for it; d does not yet: it can never have it, and is replaced",
        ),
    ],
)
def test_a_gang_with_members_says_which_are_not_ready(last: list[AgentRecord], says: str) -> None:
    live = [voted("a", 0), voted("b", 1), voted("c", 2), *last]
    assert why_waiting(a_gang(MEMBERS), live, NOW) == says


def test_several_that_are_not_ready_are_counted() -> None:
    told = why_waiting(a_gang(MEMBERS), [voted("a", 0)], NOW)
    assert told == "1 of 4 agents keep room for it; b does not yet, nor do 2 more: it was not heard of lately"


def test_a_vote_of_another_round_does_not_count() -> None:
    live = [an_agent(name, holdings={"g-1": replace(READY, round=2, bundles=[n])}) for n, name in enumerate("abcd")]
    assert why_waiting(a_gang(MEMBERS), live, NOW).startswith("0 of 4 agents")


def test_a_gang_whose_member_is_silent_says_so() -> None:
    running = replace(a_gang(MEMBERS), status="running")
    assert "its agent d was not heard of lately" in why_stuck(running, [an_agent(name) for name in "abc"])
    assert why_stuck(running, [an_agent(name) for name in "abcd"]) == ""


def test_a_gang_that_wants_one_zone_in_a_reservation_over_several_says_so() -> None:
    parts = [ReservedPart(gang=GangSpec(resources=ResourceSpec(cpu=1), count=4))]
    members = [PlacementMember(agent=name, bundles=[n]) for n, name in enumerate("abcd")]
    around = ReservationRecord(
        id="r-1", kind="reservation", state="held", parts=parts, placement=Placement(round=3, members=members)
    )
    live = [
        an_agent(name, zone=zone, holdings={"r-1": Holding(attempt=1, phase="reserved", bundles=[n])})
        for n, (name, zone) in enumerate(zip("abcd", ("z1", "z1", "z2", "z2"), strict=True))
    ]
    told = {
        replicas: why_waiting(a_gang(pool="~r-1", same="zone", replicas=replicas), live, NOW, {"r-1": around})
        for replicas in (2, 4)
    }
    assert told[4] == (
        "its reservation r-1 is held, and has places enough for its 4 replicas, but not in one zone; launch it without "
        "same, or wait until more places come"
    )
    assert "not in one zone" not in told[2]
