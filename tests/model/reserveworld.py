"""A small world for a reservation or a group of two bundles on three hosts with room for one each, and single jobs.

Decisions are `assign`, `units_of`, `with_members`, `held_by`, `end_reason` and `ended`. One agent may crash, freeze or
leave. What an agent has read is kept as a mark: its bundle is "own" while the record says so in the round that it has
read, else "old". A group's job is bound to the bundle of its number; in a reservation any job may use any bundle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from fray_coordinator.protocol.placements.assignment import assign
from fray_coordinator.protocol.placements.hosts import HostView, Room
from fray_coordinator.protocol.placements.owners import owner_of_reservation
from fray_coordinator.protocol.placements.reservations import (
    end_reason,
    ended,
    held_by,
    may_wait,
    units_of,
    with_members,
)
from fray_layouts.records import Placement, PlacementMember, ReservationRecord, ReservedPart, Resources
from fray_layouts.spec import GangSpec, ResourceSpec
from tests.model.explorer import Step

AGENTS = ("a", "b", "c")
JOBS = ("0", "1")
ALONE = "a job starts before the reservation was held"
TWO = "two have the room of one"
UNHELD = "it is held, and a member has something else in the room"
HALF = "a group is held of which a job has ended"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off, one at a time."""

    held_first: bool = True
    binding: bool = True
    busy_stays: bool = True
    refill: bool = True
    stop_left: bool = True
    drop_done: bool = True
    void: bool = True


@dataclass(frozen=True, slots=True)
class Scope:
    """The explored world: a group or a reservation that needs `low` bundles, and its possible faults.

    forever: jobs that never end by themselves.
    """

    group: bool = True
    low: int = 2
    faults: int = 1
    kinds: tuple[str, ...] = ("crash", "freeze", "leave")
    singles: int = 1
    forever: tuple[int, ...] = ()


class Host(NamedTuple):
    """An agent: `record` alive, dead, buried or left. `has`: "", "single", or "own" or "old" and a bundle's number."""

    mode: str = "up"
    record: str = "alive"
    has: str = ""
    job: int = -1
    listed: str = ""
    listed_job: int = -1


class Reserve(NamedTuple):
    """A state. `bundles`: the agent of each, -1 for none; `jobs`: waits, runs, done or stopped. `sent`: a pass's "held"
    is on its way."""

    state: str = "forming"
    bundles: tuple[int, ...] = (-1, -1)
    hosts: tuple[Host, ...] = (Host(),) * len(AGENTS)
    jobs: tuple[str, ...] = ("waits", "waits")
    sent: bool = False
    faults: int = 1
    singles: int = 1


@cache
def record(group: bool, low: int, state: str, bundles: tuple[int, ...]) -> ReservationRecord:
    """The real record."""
    gang = GangSpec(resources=ResourceSpec(cpu=1.0))
    members = [
        PlacementMember(agent=AGENTS[agent], bundles=[n for n, on in enumerate(bundles) if on == agent])
        for agent in sorted(set(bundles) - {-1})
    ]
    parts = [ReservedPart(gang=gang, job=job if group else "") for job in JOBS]
    kind = "group" if group else "reservation"
    return ReservationRecord(
        id="r", kind=kind, parts=parts, low=low, state=state, placement=Placement(round=1, members=members)
    )


@cache
def given(
    of: tuple[bool, int, str, tuple[int, ...]],
    live: frozenset[str],
    busy: frozenset[str],
    used: frozenset[str],
    done: frozenset[str],
    rival: bool = False,
) -> tuple[int, ...]:
    """The bundles as the pass would write them.

    of: arguments of `record`; rival: an earlier owner wants as many hosts as it can get.
    """
    now = record(*of)
    place = Resources(cpu=1000, memory=1, disk=1)
    hosts = [HostView(name, "default", place, busy=Room(cpu=1000 * (name in busy))) for name in sorted(live)]
    if now.state == "forming":
        members = list(assign(hosts, [owner_of_reservation(now)])["r"].members)
        return _bundles(members)
    units = units_of(now, live, used, done)
    found = assign(hosts, units)
    for count in range(len(hosts) * rival, 0, -1):
        part = replace(owner_of_reservation(now).parts[0], first=0, count=count)
        earlier = replace(
            units[0], id="rival", priority=1, parts=(part,), low=count, placement=Placement(), forming=True
        )
        found = assign(hosts, [earlier, *units])
        if found["rival"].members:
            break
    wanted = with_members(
        now,
        {
            unit.id: unit.placement.members
            if unit.id not in found
            else found[unit.id].members
            if may_wait(unit) or found[unit.id].until == 0.0
            else ()
            for unit in units
        },
    )
    return _bundles((wanted or now).placement.members)


def _bundles(members: list[PlacementMember]) -> tuple[int, ...]:
    on = {number: AGENTS.index(member.agent) for member in members for number in member.bundles}
    return tuple(on.get(number, -1) for number in range(len(JOBS)))


class ReserveWorld:
    """The steps under `rules`, in a scope."""

    def __init__(self, rules: Rules, scope: Scope) -> None:
        self.rules, self.scope = rules, scope
        self.start = Reserve(faults=scope.faults, singles=scope.singles)

    def good(self, w: Reserve) -> bool:
        jobs = all(
            job in ("done", "stopped") or (n in self.scope.forever and job.startswith("runs"))
            for n, job in enumerate(w.jobs)
        )
        idle = all(host.mode == "gone" or not _has_bundle(host) or _runs(w, host) for host in w.hosts)
        return jobs and idle and (w.state == "ended" or bool(self.scope.forever))

    def broken(self, w: Reserve) -> str:
        """The broken invariant; "" as long as all voted bundles exist when the owner is held."""
        if w.state != "held" or w.faults < self.scope.faults or any(job != "waits" for job in w.jobs):
            return ""
        needed = w.bundles[: self.scope.low]
        return UNHELD if any(w.hosts[on].has != f"own {n}" for n, on in enumerate(needed) if on >= 0) else ""

    def steps(self, w: Reserve) -> Iterator[Step[Reserve]]:
        yield from self._pass(w)
        yield from self._people(w)
        for number in range(len(w.hosts)):
            yield from self._agent(w, number)

    def _record(self, w: Reserve) -> ReservationRecord:
        return record(self.scope.group, self.scope.low, w.state, w.bundles)

    def _done(self, w: Reserve) -> frozenset[str]:
        return frozenset(JOBS[n] for n, job in enumerate(w.jobs) if job in ("done", "stopped"))

    def _pass(self, w: Reserve) -> Iterator[Step[Reserve]]:
        if w.state == "ended":
            return
        now, done = self._record(w), self._done(w)
        reason = end_reason(now, done, None, 0.0) if self.rules.void or w.state != "forming" else ""
        if not self.scope.group and len(done) == len(JOBS):
            reason = "released"
        if reason:
            assert ended(now, 0.0, reason) is not None
            yield Step(f"it ends: {reason}", _written(w, "ended", w.bundles, set(range(len(AGENTS)))))
            return
        live = frozenset(
            name for name, h in zip(AGENTS, w.hosts, strict=True) if h.record == "alive" and h.mode != "leaving"
        )
        busy = frozenset(AGENTS[n] for n, host in enumerate(w.hosts) if host.listed == "single")
        used = frozenset(AGENTS[n] for n, host in enumerate(w.hosts) if host.listed_job >= 0)
        kept = done if self.rules.drop_done else frozenset()
        of = self.scope.group, self.scope.low, w.state, w.bundles
        if w.state == "held" and w.faults and "rival" in self.scope.kinds:
            yield self._given(
                w._replace(faults=w.faults - 1), given(of, live, busy, used, kept, True), "an earlier owner"
            )
        wanted = given(of, live, busy, used, kept)
        if w.state == "held" and not self.rules.refill:
            wanted = tuple(new if new == old else -1 for new, old in zip(wanted, w.bundles, strict=True))
        if wanted != w.bundles:
            yield self._given(w, wanted, "the pass")
        elif w.state == "forming" and not w.sent and self._all_voted(w):
            yield Step("the pass sends: held", w._replace(sent=True))
        if w.state == "forming" and w.sent:
            half = self.scope.group and any(job in ("done", "stopped") for job in w.jobs) and not self.rules.void
            yield Step("held", w._replace(state="held", sent=False), breaks=HALF if half else "")

    def _given(self, w: Reserve, wanted: tuple[int, ...], who: str) -> Step[Reserve]:
        moved = {a for new, old in zip(wanted, w.bundles, strict=True) if new != old for a in (new, old)}
        which = set(range(len(AGENTS))) if w.state == "forming" else moved
        after = _written(w, w.state, wanted, which)
        return Step(f"for {who} the bundles are {wanted}", after, fault=who != "the pass")

    def _all_voted(self, w: Reserve) -> bool:
        needed = w.bundles[: self.scope.low]
        return all(on >= 0 and w.hosts[on].listed == f"own {number}" for number, on in enumerate(needed))

    def _people(self, w: Reserve) -> Iterator[Step[Reserve]]:
        if not w.faults:
            return
        spent = w._replace(faults=w.faults - 1)
        if "stop" in self.scope.kinds:
            for number, job in enumerate(w.jobs):
                if job == "waits":
                    jobs = _put(spent.jobs, number, "stopped")
                    yield Step(f"a user stops job {number}", spent._replace(jobs=jobs), fault=True)
        if "release" in self.scope.kinds and w.state != "ended":
            yield Step("it is released", _written(spent, "ended", w.bundles, set(range(len(AGENTS)))), fault=True)

    def _agent(self, w: Reserve, number: int) -> Iterator[Step[Reserve]]:
        host, name = w.hosts[number], AGENTS[number]
        if host.record == "alive" and host.mode in ("gone", "frozen"):
            yield Step(f"{name} is declared dead", _with(w, number, record="dead"))
        if host.record == "dead":
            jobs = tuple("waits" if job == f"runs {number}" else job for job in w.jobs)
            yield Step(f"{name} is buried", _with(w._replace(jobs=jobs), number, record="buried"))
        if number == 0 and host.mode == "up" and w.faults:
            spent = w._replace(faults=w.faults - 1)
            if "crash" in self.scope.kinds:
                yield Step("a crashes", _with(spent, 0, mode="gone", has="", job=-1), fault=True)
            if "freeze" in self.scope.kinds:
                yield Step("a freezes", _with(spent, 0, mode="frozen"), fault=True)
            if "leave" in self.scope.kinds:
                yield Step("a is told to leave", _with(spent, 0, mode="leaving"), fault=True)
        if host.mode == "frozen":
            yield Step(f"{name} wakes", _with(w, number, mode="up"))
        if host.mode not in ("up", "leaving"):
            return
        if host.record != "alive":
            yield Step(f"{name} sees that it is dead", _with(w, number, mode="gone", has="", job=-1))
            return
        yield from self._room(w, number)
        yield from self._jobs(w, number)
        if (host.has, host.job) != (host.listed, host.listed_job):
            yield Step(f"{name} beats", _with(w, number, listed=host.has, listed_job=host.job))
        if host.mode == "leaving" and not host.has and host.job < 0:
            yield Step(f"{name} leaves", _with(w, number, mode="gone", record="left", listed="", listed_job=-1))

    def _mine(self, w: Reserve, number: int) -> list[int]:
        """The bundles that the record names the agent for; while it forms, to vote for."""
        if w.state == "held":
            return list(held_by(self._record(w), AGENTS[number]))
        return [n for n, on in enumerate(w.bundles) if on == number and w.state == "forming"]

    def _room(self, w: Reserve, number: int) -> Iterator[Step[Reserve]]:
        host, name, mine = w.hosts[number], AGENTS[number], self._mine(w, number)
        if host.has == "single":
            yield Step(f"{name}'s single ends", _with(w, number, has=""))
        if not host.has and host.mode == "up":
            if w.singles:
                spent = w._replace(singles=w.singles - 1)
                yield Step(f"{name} claims a single", _with(spent, number, has="single"), fault=True)
            for bundle in mine:
                two = TWO if host.job >= 0 else ""
                yield Step(f"{name} reserves bundle {bundle}", _with(w, number, has=f"own {bundle}"), breaks=two)
        if not _has_bundle(host):
            return
        bundle = int(host.has[-1])
        if host.has.startswith("old") and bundle in mine and host.mode == "up":
            yield Step(f"{name} reads: {bundle} is its own", _with(w, number, has=f"own {bundle}"))
        elif host.has.startswith("old") and (host.job < 0 or not self.rules.busy_stays):
            yield Step(f"{name} gives bundle {bundle} up", _with(w, number, has=""))
        if host.has.startswith("own") and w.state == "forming" and not self.rules.binding:
            yield Step(f"{name} has waited long enough", _with(w, number, has=""))
        if host.mode == "leaving" and host.job < 0:
            if host.has.startswith("own") and w.state == "forming":
                none = (-1,) * len(JOBS)
                after = _written(w, "forming", none, set(range(len(AGENTS))))
                yield Step(f"{name} takes its vote back", _with(after, number, has=""))
            else:
                yield Step(f"{name} drops bundle {bundle}", _with(w, number, has=""))

    def _jobs(self, w: Reserve, number: int) -> Iterator[Step[Reserve]]:
        host, name = w.hosts[number], AGENTS[number]
        may = w.state == "held" or not self.rules.held_first
        if host.has.startswith("own") and host.job < 0 and host.mode == "up" and may:
            for job, status in enumerate(w.jobs):
                if status == "waits" and (not self.scope.group or job == int(host.has[-1])):
                    jobs = _put(w.jobs, job, f"runs {number}")
                    alone = ALONE if w.state == "forming" else ""
                    yield Step(f"{name} starts job {job}", _with(w._replace(jobs=jobs), number, job=job), breaks=alone)
        if w.state == "ended" and self.rules.stop_left:
            for job, status in enumerate(w.jobs):
                if status == "waits":
                    yield Step(f"job {job} is stopped", w._replace(jobs=_put(w.jobs, job, "stopped")))
        if host.job < 0:
            return
        if w.jobs[host.job] != f"runs {number}":
            yield Step(f"{name} reads: its job is not its own", _with(w, number, job=-1))
            return
        ends = {"done": host.job not in self.scope.forever, "waits": host.mode == "leaving"}
        ends["stopped"] = w.state == "ended" and self.rules.stop_left
        for status in (status for status, happens in ends.items() if happens):
            jobs = _put(w.jobs, host.job, status)
            yield Step(f"job {host.job} {status} on {name}", _with(w._replace(jobs=jobs), number, job=-1))


def _has_bundle(host: Host) -> bool:
    return host.has[:3] in ("own", "old")


def _runs(w: Reserve, host: Host) -> bool:
    return host.job >= 0 and w.jobs[host.job].startswith("runs")


def _put(items: tuple[str, ...], number: int, item: str) -> tuple[str, ...]:
    return (*items[:number], item, *items[number + 1 :])


def _with(w: Reserve, number: int, **changes: object) -> Reserve:
    hosts = (*w.hosts[:number], w.hosts[number]._replace(**changes), *w.hosts[number + 1 :])  # type: ignore[arg-type]
    return w._replace(hosts=hosts)


def _written(w: Reserve, state: str, bundles: tuple[int, ...], which: set[int]) -> Reserve:
    """A write of the record: a "held" that was on its way is rejected, and what these agents have read is old."""

    def old(text: str) -> str:
        return text.replace("own", "old")

    hosts = tuple(
        host._replace(has=old(host.has), listed=old(host.listed)) if number in which else host
        for number, host in enumerate(w.hosts)
    )
    return w._replace(state=state, bundles=bundles, hosts=hosts, sent=False)
