"""A small world for the lease of the coordinator's pass and for death by observation.

The decisions are all of `protocol.passlease`, and `observe`, `doomed`, `declare_dead` of `protocol.death`. X is the
agent that is watched; it holds the lease at first. The observer looks at the lease, takes it when it may, and runs
passes; or it runs `fray coordinate --once`, again and again. One that dies is followed by another, which knows nothing
of its own. Time goes by in intervals, which are those of beat and pass alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fray_coordinator.protocol import passlease
from fray_coordinator.protocol.death import MAX_GAP_INTERVALS, declare_dead, doomed, observe
from fray_coordinator.protocol.heartbeat import DEATH_INTERVALS
from fray_coordinator.protocol.passlease import LEASE_INTERVALS
from fray_layouts.records import AgentRecord, PassRecord, Settings, Suspect
from tests.model.explorer import Step

TOO_LONG = MAX_GAP_INTERVALS + 1
"""Longer than this is all the same."""

SETTINGS = Settings(beat_interval=1.0, pass_interval=1.0)
OLD, CURRENT = 0, 1
ME = "the observer"
X = AgentRecord(id="X", host="x", pool="default", interval=1.0, beat=CURRENT)

Age = tuple[int, int]
"""What is known of X: a beat, and for how many intervals it has stood still."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off, one at a time."""

    long_gaps_add_nothing: bool = True
    the_leases_too: bool = True
    credit_at_the_noted_beat: bool = True
    age_of_one_version: bool = True
    death_on_the_observed_beat: bool = True
    silence_is_compared: bool = True


class Eye(NamedTuple):
    """One observer. `read`, `looked`: intervals since it read X and the lease, None if it never did.

    `seen`: the lease that it remembers is the present one; `age`: how long it has seen that unchanged. `second`: this
    is the second look of its visit.
    """

    phase: str = "away"
    known: Age | None = None
    told: Age | None = None
    read: int | None = None
    seen: bool = False
    looked: int | None = None
    age: int = 0
    second: bool = False


class Watched(NamedTuple):
    """A state. `silent`: intervals since X's last beat, outages left out; `noted`: its beat, as the lease has it."""

    silent: int = 0
    up: bool = True
    dead: bool = False
    holder: str = "X"
    eye: Eye = Eye()
    noted: int = CURRENT
    suspect: Age | None = None
    faults: frozenset[str] = frozenset()


class PassWorld:
    """The steps under `rules`. `once`: the observer visits without the lease."""

    def __init__(self, rules: Rules, once: bool, *faults: str) -> None:
        self.rules = rules
        self.once = once
        self.start = Watched(faults=frozenset(faults))

    def good(self, w: Watched) -> bool:
        return w.up or w.dead

    def steps(self, w: Watched) -> Iterator[Step[Watched]]:
        if w.dead:
            return
        yield Step("an interval goes by", _later(w, 1)._replace(silent=min(w.silent + 1, DEATH_INTERVALS)))
        if "outage" in w.faults:
            yield Step("an outage", _later(w, TOO_LONG)._replace(faults=w.faults - {"outage"}), fault=True)
        if w.up:
            yield from self._x(w)
        yield from self._eye(w)
        if "death" in w.faults:
            holder = "its predecessor" if w.holder == ME else w.holder
            other = w._replace(eye=Eye(), holder=holder, faults=w.faults - {"death"})
            yield Step("the observer dies, and another follows", other, fault=True)

    def _x(self, w: Watched) -> Iterator[Step[Watched]]:
        eye = w.eye._replace(known=_old(w.eye.known), told=_old(w.eye.told))
        yield Step("X beats", w._replace(silent=0, noted=OLD, suspect=_old(w.suspect), eye=eye))
        if w.holder == "X":
            renewed = passlease.after_pass(_record(w), "X", CURRENT, {}, {}, {}, 0.0)
            after = w._replace(noted=renewed.holder_beat, suspect=None, eye=w.eye._replace(seen=False))
            yield Step("X renews the lease", after)
        if "crash" in w.faults:
            yield Step("X crashes", w._replace(up=False, faults=w.faults - {"crash"}), fault=True)

    def _eye(self, w: Watched) -> Iterator[Step[Watched]]:
        match w.eye.phase:
            case "away" if self.once:
                yield Step("it begins a visit", w._replace(eye=Eye("pass", told=w.suspect)))
            case "away":
                yield self._look(w)
            case "take":
                yield self._take(w)
            case "pass":
                yield self._read(w)
            case "judge":
                yield self._judge(w)
            case "renew" if not self.once:
                yield self._renew(w)
            case "renew" if not w.eye.second:
                again = w.eye._replace(phase="pass", second=True, told=w.eye.known)
                yield Step("it begins its second look", w._replace(eye=again))
            case "renew":
                left = _age(passlease.after_visit(_record(w), _suspects(w.eye.known), {"X"}).suspects)
                yield Step(f"it leaves what it knows: {left}", w._replace(suspect=left, eye=Eye()))

    def _look(self, w: Watched) -> Step[Watched]:
        eye = w.eye
        gap = eye.looked if self.rules.the_leases_too or eye.looked is None else min(eye.looked, MAX_GAP_INTERVALS)
        age = passlease.lease_age(float(eye.age), eye.seen, gap, SETTINGS)
        free = passlease.may_take(_record(w), age, SETTINGS)
        phase = "pass" if w.holder == ME else "take" if free else "away"
        now = eye._replace(phase=phase, told=w.suspect, seen=True, looked=0, age=min(int(age), LEASE_INTERVALS))
        return Step("it looks at the lease", w._replace(eye=now))

    def _take(self, w: Watched) -> Step[Watched]:
        if not w.eye.seen:
            return Step("it is too late to take the lease", w._replace(eye=self._anew(w.eye)))
        noted = w.noted if self.rules.credit_at_the_noted_beat else CURRENT
        found = _record(w._replace(noted=noted))
        suspect = _age(passlease.inherit(found, float(w.eye.age), X if w.holder == "X" else None))
        eye = self._anew(w.eye)._replace(phase="pass", told=suspect)
        return Step(f"it takes the lease: {suspect}", w._replace(holder=ME, noted=OLD, suspect=suspect, eye=eye))

    def _read(self, w: Watched) -> Step[Watched]:
        eye = w.eye
        gap = eye.read if self.rules.long_gaps_add_nothing or eye.read is None else min(eye.read, MAX_GAP_INTERVALS)
        own, told = _suspect(eye.known), _suspect(eye.told)
        seen = observe(X, own, told, gap)
        if not self.rules.silence_is_compared and told is not None and told.beat == CURRENT:
            seen = observe(X, own, None, gap)
            seen.age += told.age
        known = (seen.beat, min(int(seen.age), DEATH_INTERVALS))
        after = eye._replace(phase="judge" if doomed(X, seen) else "renew", known=known, told=None, read=0)
        return Step(f"it reads X: {known}", w._replace(eye=after))

    def _judge(self, w: Watched) -> Step[Watched]:
        assert w.eye.known is not None, "it was just read"
        beat = w.eye.known[0] if self.rules.death_on_the_observed_beat else CURRENT
        if declare_dead(X, beat) is None:
            return Step("it finds that X lives", w._replace(eye=w.eye._replace(phase="renew")))
        early = "a live agent is declared dead too early" if w.up and w.silent < DEATH_INTERVALS else ""
        return Step("it declares X dead", w._replace(dead=True), breaks=early)

    def _renew(self, w: Watched) -> Step[Watched]:
        if w.holder != ME:
            return Step("it has lost the lease", w._replace(eye=self._anew(w.eye)))
        told = w.eye.known if w.eye.known is not None and w.eye.known[1] else None
        kept = _age(passlease.after_pass(_record(w), ME, OLD, _suspects(told), {}, {}, 0.0).suspects)
        return Step(f"it renews the lease: {kept}", w._replace(suspect=kept, eye=self._anew(w.eye)))

    def _anew(self, eye: Eye) -> Eye:
        age = 0 if self.rules.age_of_one_version else eye.age
        return eye._replace(phase="away", seen=True, looked=0, age=age, told=None)


def _later(w: Watched, intervals: int) -> Watched:
    def later(since: int | None) -> int | None:
        return None if since is None else min(since + intervals, TOO_LONG)

    return w._replace(eye=w.eye._replace(read=later(w.eye.read), looked=later(w.eye.looked)))


def _old(age: Age | None) -> Age | None:
    return None if age is None else (OLD, age[1])


def _record(w: Watched) -> PassRecord:
    return PassRecord(holder=w.holder, holder_beat=w.noted, suspects=_suspects(w.suspect))


def _suspect(age: Age | None) -> Suspect | None:
    return None if age is None else Suspect(beat=age[0], age=float(age[1]))


def _suspects(age: Age | None) -> dict[str, Suspect]:
    found = _suspect(age)
    return {} if found is None else {"X": found}


def _age(suspects: dict[str, Suspect]) -> Age | None:
    found = suspects.get("X")
    return None if found is None else (found.beat, min(int(found.age), DEATH_INTERVALS))
