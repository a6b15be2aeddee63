"""A small world for the lease of the coordinator's pass and for death by observation.

The decisions are all of `protocol.role_lease`, and `observe`, `has_timed_out`, `defer_mass_failure` and
`declare_dead` of `protocol.failure_detection`. X is the watched agent; at first it holds the lease. The observer looks
at the lease, takes it when it may, and runs passes; or it runs `fray coordinate --once` again and again. When an
observer dies, another one follows, which knows nothing at first. Time goes in intervals, the same for beats and passes.

X may have a twin, Y, that beats and falls silent with it, so that observers know the same of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fray_coordinator.protocol import role_lease
from fray_coordinator.protocol.failure_detection import (
    MAX_GAP_INTERVALS,
    declare_dead,
    defer_mass_failure,
    has_timed_out,
    observe,
)
from fray_coordinator.protocol.heartbeat import DEATH_INTERVALS
from fray_coordinator.protocol.role_lease import LEASE_INTERVALS
from fray_layouts.records import (
    AgentRecord,
    ClusterSettings,
    ReconcilerRecord,
    Suspect,
)
from tests.model.explorer import Step

TOO_LONG = MAX_GAP_INTERVALS + 1
"""Intervals; longer times make no difference."""

SETTINGS = ClusterSettings(beat_interval=1.0, pass_interval=1.0)
OLD, CURRENT = 0, 1
ME, PREDECESSOR = "the observer", "its predecessor"
X = AgentRecord(id="X", host="x", pool="default", interval=1.0, beat=CURRENT)


class Age(NamedTuple):
    """An observer's knowledge of X: a beat, how many intervals it has stood still, whether X was spared at it."""

    beat: int
    age: int
    deferred: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off, one at a time."""

    long_gaps_add_nothing: bool = True
    the_leases_too: bool = True
    credit_at_the_noted_beat: bool = True
    age_of_one_version: bool = True
    death_on_the_observed_beat: bool = True
    silence_is_compared: bool = True
    suspects_are_inherited: bool = True
    visits_are_compared: bool = True
    visits_are_merged: bool = True
    the_many_are_spared: bool = True
    sparing_is_told: bool = True
    spared_for_one_is_spared_for_all: bool = True


class Eye(NamedTuple):
    """One observer. `read`, `looked`: intervals since it read X and the lease, None if it never did.

    `seen`: the lease that it remembers is the present one; `age`: how long it has seen that unchanged. `second`: this
    is the second look of its visit. `passes`: those that it has run, if it has a life of so many.
    """

    phase: str = "away"
    known: Age | None = None
    told: Age | None = None
    read: int | None = None
    seen: bool = False
    looked: int | None = None
    age: int = 0
    second: bool = False
    passes: int = 0


class Watched(NamedTuple):
    """A state.

    `silent`: intervals since X's last beat, outages left out; `noted`: its beat, as the lease has it. `slow`: what
    another visitor knows, that has still to leave it.
    """

    silent: int = 0
    up: bool = True
    dead: bool = False
    holder: str = "X"
    eye: Eye = Eye()
    noted: int = CURRENT
    suspect: Age | None = None
    slow: Age | None = None
    faults: frozenset[str] = frozenset()


class PassWorld:
    """The steps under `rules`.

    Args:
        once: the observer visits without the lease.
        twin: Y is there too.
        life: each holder of the lease dies after so many passes; in fewer than two none sees a beat stand still.
    """

    def __init__(self, rules: Rules, once: bool, *faults: str, twin: bool = False, life: int | None = None) -> None:
        self.rules = rules
        self.once = once
        self.watched = ["X", "Y"] if twin else ["X"]
        self.life = life
        self.limit = DEATH_INTERVALS * len(self.watched)
        self.start = Watched(holder=PREDECESSOR if twin else "X", faults=frozenset(faults))

    def good(self, w: Watched) -> bool:
        return w.up or w.dead

    def steps(self, w: Watched) -> Iterator[Step[Watched]]:
        if w.dead:
            return
        yield Step("an interval goes by", _later(w, 1)._replace(silent=min(w.silent + 1, self.limit)))
        if "outage" in w.faults:
            yield Step("an outage", _later(w, TOO_LONG)._replace(faults=w.faults - {"outage"}), fault=True)
        if w.up:
            yield from self._x(w)
        if w.eye.passes == self.life:
            yield Step("the observer's life is over, another follows", _followed(w))
            return
        yield from self._eye(w)
        if "death" in w.faults:
            other = _followed(w)._replace(faults=w.faults - {"death"})
            yield Step("the observer dies, and another follows", other, fault=True)
        if "slow visitor" in w.faults and w.eye.known is not None:
            other = w._replace(slow=w.eye.known, faults=w.faults - {"slow visitor"})
            yield Step("another visitor knows as much, and is slow", other, fault=True)
        if w.slow is not None:
            yield self._leave(w._replace(slow=None), w.slow, w.eye)

    def _x(self, w: Watched) -> Iterator[Step[Watched]]:
        eye = w.eye._replace(known=_old(w.eye.known), told=_old(w.eye.told))
        yield Step("X beats", w._replace(silent=0, noted=OLD, suspect=_old(w.suspect), slow=_old(w.slow), eye=eye))
        if w.holder == "X":
            renewed = role_lease.after_pass(_record(w), "X", CURRENT, {}, {}, {}, 0.0, 0.0)
            after = w._replace(noted=renewed.holder_beat, suspect=None, eye=w.eye._replace(seen=False))
            yield Step("X renews the lease", after)
        if "crash" in w.faults:
            yield Step("X crashes", w._replace(up=False, faults=w.faults - {"crash"}), fault=True)

    def _eye(self, w: Watched) -> Iterator[Step[Watched]]:
        match w.eye.phase:
            case "away" if self.once:
                yield Step("it begins a visit", w._replace(eye=Eye("pass", told=self._told(w))))
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
                assert w.eye.known is not None, "it has read X twice"
                yield self._leave(w, w.eye.known, Eye())

    def _told(self, w: Watched) -> Age | None:
        return w.suspect if self.rules.suspects_are_inherited else None

    def _as_told(self, age: Age) -> Age:
        return age if self.rules.sparing_is_told else age._replace(deferred=False)

    def _leave(self, w: Watched, known: Age, eye: Eye) -> Step[Watched]:
        """A visitor that knew this ends its visit."""
        left = self._merged(w, self._as_told(known))
        lost = "what a visit has left is lost" if _forgets(w.suspect, left) else ""
        return Step(f"a visitor leaves what it knows: {left}", w._replace(suspect=left, eye=eye), breaks=lost)

    def _merged(self, w: Watched, mine: Age) -> Age | None:
        found = w.suspect
        if not self.rules.visits_are_merged:
            return mine
        if found is not None and found.beat == mine.beat:
            if not self.rules.visits_are_compared:
                return mine._replace(age=min(mine.age + found.age, DEATH_INTERVALS))
            if not self.rules.spared_for_one_is_spared_for_all:
                return max(mine, found, key=lambda one: one.age)
        return _age(role_lease.after_run_without_lease(_record(w), _suspects(mine), {"X"}).suspects)

    def _look(self, w: Watched) -> Step[Watched]:
        eye = w.eye
        gap = eye.looked if self.rules.the_leases_too or eye.looked is None else min(eye.looked, MAX_GAP_INTERVALS)
        age = role_lease.lease_age(float(eye.age), eye.seen, gap, SETTINGS.pass_interval)
        free = role_lease.may_take(_record(w), age, SETTINGS.pass_interval)
        phase = "pass" if w.holder == ME else "take" if free else "away"
        now = eye._replace(phase=phase, told=self._told(w), seen=True, looked=0, age=min(int(age), LEASE_INTERVALS))
        return Step("it looks at the lease", w._replace(eye=now))

    def _take(self, w: Watched) -> Step[Watched]:
        if not w.eye.seen:
            return Step("it is too late to take the lease", w._replace(eye=self._anew(w.eye)))
        noted = w.noted if self.rules.credit_at_the_noted_beat else CURRENT
        found = _record(w._replace(noted=noted, suspect=self._told(w)))
        suspect = _age(role_lease.inherited_suspects(found, float(w.eye.age), X if w.holder == "X" else None))
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
        guilty = dict.fromkeys(self.watched, seen) if has_timed_out(X, seen) else {}
        deferred = defer_mass_failure(guilty, len(self.watched)) if self.rules.the_many_are_spared else {}
        known = _age(guilty | deferred or {"X": seen})
        after = eye._replace(phase="judge" if guilty and not deferred else "renew", known=known, told=None, read=0)
        return Step(f"it reads X: {known}", w._replace(eye=after))

    def _judge(self, w: Watched) -> Step[Watched]:
        assert w.eye.known is not None, "it was just read"
        beat = w.eye.known.beat if self.rules.death_on_the_observed_beat else CURRENT
        if declare_dead(X, beat) is None:
            return Step("it finds that X lives", w._replace(eye=w.eye._replace(phase="renew")))
        early = "a live agent is declared dead too early" if w.up and w.silent < self.limit else ""
        return Step("it declares X dead", w._replace(dead=True), breaks=early)

    def _renew(self, w: Watched) -> Step[Watched]:
        if w.holder != ME:
            return Step("it has lost the lease", w._replace(eye=self._anew(w.eye)))
        known = w.eye.known
        told = self._as_told(known) if known is not None and (known.deferred or known.age) else None
        kept = _age(role_lease.after_pass(_record(w), ME, OLD, _suspects(told), {}, {}, 0.0, 0.0).suspects)
        eye = self._anew(w.eye)._replace(passes=w.eye.passes + (self.life is not None))
        return Step(f"it renews the lease: {kept}", w._replace(suspect=kept, eye=eye))

    def _anew(self, eye: Eye) -> Eye:
        age = 0 if self.rules.age_of_one_version else eye.age
        return eye._replace(phase="away", seen=True, looked=0, age=age, told=None)


def _later(w: Watched, intervals: int) -> Watched:
    def later(since: int | None) -> int | None:
        return None if since is None else min(since + intervals, TOO_LONG)

    return w._replace(eye=w.eye._replace(read=later(w.eye.read), looked=later(w.eye.looked)))


def _followed(w: Watched) -> Watched:
    return w._replace(eye=Eye(), holder=PREDECESSOR if w.holder == ME else w.holder)


def _old(age: Age | None) -> Age | None:
    return None if age is None else age._replace(beat=OLD)


def _forgets(before: Age | None, after: Age | None) -> bool:
    """Whether silence at the present beat that the record told of is no longer told."""
    if before is None or before.beat == OLD:
        return False
    return after is None or after.beat == OLD or (after.age < before.age and not after.deferred)


def _record(w: Watched) -> ReconcilerRecord:
    return ReconcilerRecord(holder=w.holder, holder_beat=w.noted, suspects=_suspects(w.suspect))


def _suspect(age: Age | None) -> Suspect | None:
    return None if age is None else Suspect(beat=age.beat, age=float(age.age), deferred=age.deferred)


def _suspects(age: Age | None) -> dict[str, Suspect]:
    found = _suspect(age)
    return {} if found is None else {"X": found}


def _age(suspects: dict[str, Suspect]) -> Age | None:
    found = suspects.get("X")
    return None if found is None else Age(found.beat, min(int(found.age), DEATH_INTERVALS), found.deferred)
