"""Which families go before an owner, for how long, and in which order owners then get room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fray_coordinator.protocol.placements.assignment import assign
from fray_coordinator.protocol.placements.families import (
    KeptOut,
    change_of_families,
    families_first,
    goes_before,
    in_order,
    kept_out_by_asks,
)
from fray_coordinator.protocol.placements.hosts import HostView, Room
from fray_coordinator.protocol.placements.owners import Owner, owner_of_job
from fray_coordinator.protocol.scheduling import entry_of
from fray_layouts.index_keys import family_digits
from fray_layouts.records import (
    MAX_FAMILIES_FIRST,
    AgentRecord,
    Ask,
    ClusterSettings,
    FamilyFirst,
    Holding,
    JobRecord,
    Placement,
    Resources,
)
from fray_layouts.spec_parsing import parse_spec

SETTINGS = ClusterSettings()
REPAIR = SETTINGS.repair_interval
NOW, LIMIT = 10_000.0, 6 * 3600.0
FAMILY, OTHER = family_digits("top"), family_digits("other")


def job(name: str, status: str = "pending", **fields: Any) -> JobRecord:
    spec = {"name": "j", "entrypoint": {"command": ["x"]}, "resources": {"cpu": 2}}
    spec |= {key: fields.pop(key) for key in ("replicas", "priority") if key in fields}
    return JobRecord(id=name, spec=parse_spec(spec), status=status, **{"submitted_at": NOW, **fields})


def gang(name: str = "gang", **fields: Any) -> Owner:
    return owner_of_job(job(name, "gathering", replicas=2, **fields))


def first(family: str = FAMILY, at: float = NOW, again: float | None = None) -> FamilyFirst:
    return FamilyFirst(family=family, at=at, again=again)


def running(agent: str, name: str, since: float = NOW - 50, family: str = "top") -> AgentRecord:
    holding = Holding(attempt=1, phase="running", since=since, family=family)
    return AgentRecord(id=agent, host=agent, pool="default", holdings={name: holding})


def kept_out(family: str = FAMILY, who: str = "child", since: float = NOW - 100, at_once: bool = False) -> KeptOut:
    return KeptOut(family, who, since, at_once)


def changed(
    placement: Placement,
    wishes: Sequence[KeptOut],
    there: Sequence[AgentRecord] = (),
    now: float = NOW,
) -> Placement | None:
    found = change_of_families(placement, wishes, there, now, SETTINGS, LIMIT)
    return found.placement if found is not None else None


def test_a_family_of_which_a_job_runs_on_a_member_goes_first_in_a_new_round() -> None:
    placement = Placement(round=3, place=NOW - 40)
    found = change_of_families(placement, [kept_out()], [running("a", "parent")], NOW, SETTINGS, LIMIT)
    assert found is not None
    assert (found.placement.round, found.placement.first) == (4, [first()])
    assert [(turn.kept_out.who, turn.for_job, turn.agent) for turn in found.turns] == [("child", "parent", "a")]


def test_nobody_else_s_job_goes_first() -> None:
    assert changed(Placement(place=NOW), [kept_out()], [running("a", "stranger", family="other")]) is None
    assert changed(Placement(place=NOW), [kept_out()]) is None


def test_what_ran_before_and_what_is_of_higher_priority_is_let_in_at_once_without_a_job_there() -> None:
    entries = [entry_of(job("again", attempt=2)), entry_of(job("high", priority=5)), entry_of(job("new"))]
    asks = [Ask(entry=entry.key(), owner="gang", since=NOW) for entry in entries]
    wishes = kept_out_by_asks(gang(submitted_at=NOW - 1), asks)
    assert [wish.at_once for wish in wishes] == [True, True, False]
    now_first = changed(Placement(place=NOW), wishes)
    assert now_first is not None
    assert families_first(now_first) == {family_digits("again"), family_digits("high")}


def test_a_turn_is_over_when_nothing_runs_there_that_ran_there_at_its_begin() -> None:
    placement, later = Placement(round=4, place=NOW - 300, first=[first()]), NOW + 2 * REPAIR
    assert changed(placement, [], [running("a", "parent")], later) is None
    assert changed(placement, [], [running("a", "guest", since=NOW + 1)], later - 1) is None, "it lasts two repairs"
    over = changed(placement, [], [running("a", "guest", since=NOW + 1)], later)
    assert over is not None
    assert (over.round, families_first(over)) == (4, frozenset())
    assert over.first == [first(again=later + later - (NOW - 300))], "it rests for as long as the owner has waited"


def test_a_family_that_had_its_turn_rests_first() -> None:
    placement = Placement(place=NOW - 300, first=[first(again=NOW + 10)])
    there = [running("a", "guest")]
    assert changed(placement, [kept_out()], there) is None
    assert changed(placement, [kept_out(at_once=True)], there) is not None
    again = changed(placement, [kept_out()], there, NOW + 10)
    assert again is not None
    assert again.first == [first(at=NOW + 10)]


def test_after_the_limit_the_oldest_is_let_in_and_the_next_after_twice_that() -> None:
    wishes = [kept_out(OTHER, "young", NOW), kept_out(FAMILY, "old", NOW - 5)]
    placement = Placement(place=NOW)
    assert changed(placement, wishes, now=NOW + LIMIT - 1) is None
    found = changed(placement, wishes, now=NOW + LIMIT)
    assert found is not None
    assert (set(families_first(found)), found.limit_turns) == ({FAMILY}, 1)
    assert changed(found, wishes[:1], now=NOW + LIMIT + 1) is None
    assert changed(found, wishes[:1], now=NOW + 2 * LIMIT) is not None


def test_there_are_no_more_families_than_a_record_may_have() -> None:
    many = [kept_out(family_digits(f"j{n}"), f"j{n}", at_once=True) for n in range(MAX_FAMILIES_FIRST + 5)]
    found = changed(Placement(place=NOW), many)
    assert found is not None
    assert len(found.first) == MAX_FAMILIES_FIRST
    assert changed(found, many) is None


def test_an_earlier_job_and_one_of_a_family_that_goes_first_go_before_an_owner() -> None:
    owner = gang(submitted_at=NOW, placement=Placement(first=[first()]))
    assert goes_before(entry_of(job("later", submitted_at=NOW + 5, ancestors=["top"])), owner)
    assert goes_before(entry_of(job("top", submitted_at=NOW + 5)), owner), "the topmost ancestor itself"
    assert goes_before(entry_of(job("earlier", submitted_at=NOW - 5)), owner)
    assert not goes_before(entry_of(job("later", submitted_at=NOW + 5, ancestors=["other"])), owner)
    rested = gang(submitted_at=NOW, placement=Placement(first=[first(again=NOW + 9)]))
    assert not goes_before(entry_of(job("later", submitted_at=NOW + 5, ancestors=["top"])), rested)


def test_the_owners_of_a_family_come_just_before_the_owner_that_lets_it_in() -> None:
    one = gang("one", submitted_at=1.0)
    two = gang("two", submitted_at=2.0, placement=Placement(first=[first()]), ancestors=["top"])
    three, four = gang("three", submitted_at=3.0), gang("four", submitted_at=4.0, ancestors=["top", "x"])
    assert [owner.id for owner in in_order([four, three, two, one])] == ["one", "four", "two", "three"]
    five = gang("five", submitted_at=5.0, ancestors=["other"])
    four = gang("four", submitted_at=4.0, ancestors=["top"], placement=Placement(first=[first(OTHER)]))
    assert [owner.id for owner in in_order([five, four, three, two, one])] == ["one", "five", "four", "two", "three"]


def a_host(name: str, busy: int = 0, **uses: int) -> HostView:
    capacity = Resources(cpu=2000, memory=2**33, disk=2**36)
    room = {task: Room(cpu=cpu) for task, cpu in uses.items()}
    used = busy + sum(uses.values())
    return HostView(agent=name, pool="default", capacity=capacity, host=name, busy=Room(cpu=used), uses=room)


def test_an_owner_is_not_given_room_that_its_ancestors_use() -> None:
    child = gang(ancestors=["top", "parent"])
    hosts = [a_host("a", parent=1000), a_host("b"), a_host("c", busy=2000)]
    assert [member.agent for member in assign(hosts, [child])["gang"].members] == ["b", "c"]
    assert assign(hosts[:2], [child])["gang"].members == ()
    assert len(assign(hosts[:2], [gang()])["gang"].members) == 2, "it waits for another's job"
    half = owner_of_job(job("half", "gathering", replicas=2, ancestors=["parent"]))
    small = [a_host("a", parent=0), a_host("b")]
    assert len(assign(small, [half])["half"].members) == 2, "room beside its ancestors is given"
