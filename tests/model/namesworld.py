"""A small world for one name: the processes that serve it, one after another or overlapping, the repair, and a caller.

Incarnation 1 is job J1 with two attempts, of which the first may freeze or die and wake; incarnation 2 is job J2, made
once J1 is stopped. A publication reads the name, then the endpoint, CASes the name, and writes the endpoint; each may
land late, or after its process has died. The process of J2 never fails, so that somebody is there to go on. The
decisions are those of `protocol.naming`. `one_key`: both incarnations publish under one actor id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from fray_coordinator.protocol.naming import (
    HighWaterMark,
    NameHolder,
    announced,
    holder_of,
    is_stale,
    may_replace,
    taken_for,
)
from fray_layouts.records import (
    EndpointRecord,
    JobLease,
    JobRecord,
    NameRecord,
    StopRequest,
)
from tests.model.essence import NOW, SPEC
from tests.model.explorer import Step

Rank = tuple[int, int]
PROCESSES: tuple[Rank, ...] = ((1, 1), (1, 2), (2, 1))
NEWEST = PROCESSES[-1]


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off, one at a time."""

    name_by_cas: bool = True
    endpoint_on_version: bool = True
    incarnation_first: bool = True
    callers_remember: bool = True
    removed_again: bool = True


class Process(NamedTuple):
    """A process's progress with its publication, and what it has read.

    Phases: off, up, named (it has read the name), read (and the endpoint), sent (the endpoint's write, after the name's
    CAS), serving, dead (with its write perhaps still on its way), gone. `fresh`: the name is as it was read. `saw`: the
    endpoint as it was read.
    """

    phase: str = "off"
    fresh: bool = False
    saw: Rank | None = None


class World(NamedTuple):
    """A state. `name`: rank in the name's record. `ends`: what lies under the actor ids of J1 and J2.

    `attempt`, `stopped`: of J1; `created`: J2 exists. Of the caller: whom it `calls`, from whom it still `expects` a
    reply, the highest it has `met`. `removed`: the repair has worked, where it works only once.
    """

    name: Rank = (1, 0)
    ends: tuple[Rank | None, Rank | None] = (None, None)
    processes: tuple[Process, ...] = (Process(), Process(), Process())
    attempt: int = 1
    stopped: bool = False
    created: bool = False
    calls: Rank | None = None
    expects: Rank | None = None
    met: Rank = (0, 0)
    removed: bool = False


def endpoint(rank: Rank, one_key: bool) -> EndpointRecord:
    incarnation, attempt = rank
    actor = "a" if one_key else f"a{incarnation}"
    return EndpointRecord(
        namespace="ns", name="n", actor_id=actor, job=f"J{incarnation}", attempt=attempt, incarnation=incarnation,
        nonce=f"{rank}", address="",
    )  # fmt: skip


def name_record(rank: Rank) -> NameRecord:
    return NameRecord(job=f"J{rank[0]}", incarnation=rank[0], attempt=rank[1], since=NOW)


class NamesWorld:
    """The steps of the world under `rules`."""

    def __init__(self, rules: Rules, one_key: bool = False) -> None:
        self.rules = rules
        self.one_key = one_key
        self.start = World()
        self._announced = cache(self._decide_announced)
        self._accepts = cache(self._decide_accepts)

    def good(self, w: World) -> bool:
        """The newest process serves, the caller uses it, and nothing else is published."""
        published = [end for end in w.ends if end is not None]
        return w.name == NEWEST and w.processes[-1].phase == "serving" and w.met == NEWEST and published == [NEWEST]

    def steps(self, w: World) -> Iterator[Step[World]]:
        yield from self._people(w)
        for number, rank in enumerate(PROCESSES):
            yield from self._process(w, number, rank)
        yield from self._repair(w)
        yield from self._caller(w)

    # --- decisions --------------------------------------------------------------------------------------------------

    def _decide_announced(self, name: Rank, rank: Rank) -> Rank | None:
        after = announced(name_record(name), endpoint(rank, self.one_key))
        return (after.incarnation, after.attempt) if after else None

    def _decide_accepts(self, met: Rank, rank: Rank) -> bool:
        seen = HighWaterMark()
        if met != (0, 0) and self.rules.callers_remember:
            seen.meet(endpoint(met, self.one_key))
        return seen.accepts(endpoint(rank, self.one_key))

    def _may_replace(self, found: Rank | None, rank: Rank) -> bool:
        if found is not None and not self.rules.incarnation_first:
            found, rank = found[::-1], rank[::-1]
        there = endpoint(found, self.one_key) if found else None
        return may_replace(there, endpoint(rank, self.one_key))

    def _job(self, w: World, incarnation: int) -> JobRecord:
        attempt, stop = (w.attempt, StopRequest(at=NOW) if w.stopped else None) if incarnation == 1 else (1, None)
        lease = JobLease(agent="x", host="x", since=NOW)
        status = "stopped" if incarnation == 1 and w.stopped and not self._lives(w) else "running"
        return JobRecord(id=f"J{incarnation}", spec=SPEC, status=status, attempt=attempt, lease=lease, stop=stop)

    def _lives(self, w: World) -> bool:
        return any(p.phase not in ("off", "dead", "gone") for p in w.processes[:2])

    # --- steps ------------------------------------------------------------------------------------------------------

    def _people(self, w: World) -> Iterator[Step[World]]:
        if not w.stopped:
            yield Step("J1 is stopped", w._replace(stopped=True))
        if w.attempt == 1 and w.processes[0].phase != "off" and not w.stopped:
            yield Step("J1 goes to attempt 2", w._replace(attempt=2))
        if not w.created and holder_of(name_record(w.name), self._job(w, 1), NOW) is NameHolder.FREE:
            after = taken_for(name_record(w.name), "J2", NOW)
            renamed = self._renamed(w, (after.incarnation, after.attempt))
            yield Step("J2 takes the name", renamed._replace(created=True))

    def _renamed(self, w: World, name: Rank) -> World:
        return w._replace(name=name, processes=tuple(p._replace(fresh=False) for p in w.processes))

    def _is(self, w: World, number: int, process: Process) -> World:
        processes = list(w.processes)
        processes[number] = process
        return w._replace(processes=tuple(processes))

    def _process(self, w: World, number: int, rank: Rank) -> Iterator[Step[World]]:
        me = w.processes[number]
        who = f"process {rank}"
        if me.phase not in ("off", "dead", "gone") and rank != NEWEST:
            phase = "dead" if me.phase == "sent" else "gone"
            killed = w.stopped or w.attempt > rank[1]
            yield Step(f"{who} dies", self._is(w, number, me._replace(phase=phase)), fault=not killed)
        match me.phase:
            case "off" if w.created if rank == NEWEST else w.attempt >= rank[1]:
                yield Step(f"{who} starts", self._is(w, number, Process("up")))
            case "up" if self._announced(w.name, rank) is None:
                phase = "up" if rank == NEWEST else "gone"
                yield Step(f"{who} is superseded", self._is(w, number, Process(phase)))
            case "up":
                yield Step(f"{who} reads the name", self._is(w, number, Process("named", True)))
            case "named":
                yield from self._read_endpoint(w, number, rank, me)
            case "read":
                yield from self._announce(w, number, rank, me)
            case "sent" | "dead":
                yield from self._landing(w, number, rank, me)

    def _read_endpoint(self, w: World, number: int, rank: Rank, me: Process) -> Iterator[Step[World]]:
        found = w.ends[self._place(rank)]
        if self._may_replace(found, rank):
            read = me._replace(phase="read", saw=found)
            yield Step(f"process {rank} reads the endpoint {found}", self._is(w, number, read))
        else:
            yield Step(f"process {rank} meets a later one, and ends", self._is(w, number, Process("gone")))

    def _announce(self, w: World, number: int, rank: Rank, me: Process) -> Iterator[Step[World]]:
        who = f"process {rank}"
        if not me.fresh and self.rules.name_by_cas:
            yield Step(f"{who}: the name has changed", self._is(w, number, Process("up")))
            return
        breaks = "a process announced itself after a later one" if w.name > rank else ""
        sent = self._is(self._renamed(w, rank), number, me._replace(phase="sent"))
        yield Step(f"{who} raises the name and sends its endpoint", sent, breaks=breaks)

    def _landing(self, w: World, number: int, rank: Rank, me: Process) -> Iterator[Step[World]]:
        who, place = f"process {rank}", self._place(rank)
        found, alive = w.ends[place], me.phase == "sent"
        if found == me.saw or not self.rules.endpoint_on_version:
            breaks = "an endpoint went back" if found is not None and found > rank else ""
            ends = (rank, w.ends[1]) if place == 0 else (w.ends[0], rank)
            landed = self._is(w._replace(ends=ends), number, Process("serving" if alive else "gone"))
            yield Step(f"the endpoint of {who} lands", landed, breaks=breaks)
        else:
            yield Step(f"the endpoint of {who} is rejected", self._is(w, number, Process("up" if alive else "gone")))
        if not alive:
            yield Step(f"the endpoint of {who} never lands", self._is(w, number, Process("gone")))

    def _place(self, rank: Rank) -> int:
        return 0 if self.one_key else rank[0] - 1

    def _repair(self, w: World) -> Iterator[Step[World]]:
        """Remove endpoints that outlived their jobs; without the rule only once."""
        if w.removed:
            return
        for place, rank in enumerate(w.ends):
            if rank is None or not is_stale(endpoint(rank, self.one_key), self._job(w, rank[0])):
                continue
            ends = (None, w.ends[1]) if place == 0 else (w.ends[0], None)
            yield Step(f"the repair removes {rank}", w._replace(ends=ends, removed=not self.rules.removed_again))

    def _caller(self, w: World) -> Iterator[Step[World]]:
        for rank in w.ends:
            if rank is not None and rank != w.calls and self._accepts(w.met, rank):
                expects = w.calls if w.calls and self._serves(w, w.calls) else w.expects
                after = w._replace(calls=rank, expects=expects, met=max(w.met, rank))
                yield Step(f"the caller finds {rank} and calls it", after, breaks=self._back(w, rank))
        for rank in {w.calls, w.expects} - {None}:
            assert rank is not None
            done = w._replace(calls=None) if rank == w.calls else w._replace(expects=None)
            if not self._serves(w, rank):
                yield Step(f"the call to {rank} fails", done)
            elif self._accepts(w.met, rank):
                yield Step(f"the reply of {rank} is accepted", done, breaks=self._back(w, rank))
            else:
                yield Step(f"the reply of {rank} is ignored", done)

    def _back(self, w: World, rank: Rank) -> str:
        return "a caller went back to an older one" if rank < w.met else ""

    def _serves(self, w: World, rank: Rank) -> bool:
        return w.processes[PROCESSES.index(rank)].phase == "serving"
