"""A small world for a submission: first the entry, then the record, then perhaps the entry again; and a sweeper.

The decisions are `is_created_late` and `action_for` of `protocol/`. Time goes in ticks of half a quarantine and a
little, and a write that was sent lands before the tick after the next. No agent claims the job before it can be found.
A good end is a job with an entry, or a job that was never made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from msgspec.structs import replace

from fray_coordinator.protocol.claiming import IndexAction, action_for, is_created_late
from fray_coordinator.protocol.scheduling import entry_of
from fray_layouts.records import ClusterSettings, JobRecord
from tests.model.essence import Job, record
from tests.model.explorer import Step

SETTINGS = ClusterSettings()
TICK = SETTINGS.quarantine / 2 + 1
LAST = 6


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off, one at a time."""

    quarantine: bool = True
    written_again: bool = True
    counted_from_the_name: bool = True
    delete_on_version: bool = True
    repair: bool = True


class Flight(NamedTuple):
    """A write on its way: what of, and the tick in which it was sent."""

    what: str
    sent: int


class Submission(NamedTuple):
    """A state. The entry's name carries tick 0; `entry` is its version, 0 for none; `made` whether the record exists.

    Phases of the submitter: entry, record, check (whether it took too long), done, gone. `sweeper`: the version of the
    entry that a sweeper has read, 0 for none; `deleting`: the delete that it has sent.
    """

    tick: int = 0
    entry: int = 0
    writes: int = 0
    made: bool = False
    phase: str = "entry"
    since: int = 0
    flights: frozenset[Flight] = frozenset()
    sweeper: int = 0
    deleting: int = 0
    crash: bool = False


class SubmitWorld:
    """The steps under `rules`; `crash`: the submitter may die at any step."""

    def __init__(self, rules: Rules, crash: bool) -> None:
        self.rules = rules
        self.start = Submission(crash=crash)

    def good(self, w: Submission) -> bool:
        settled = w.phase in ("done", "gone") and not w.flights
        return settled and not w.deleting and (bool(w.entry) or not w.made)

    def steps(self, w: Submission) -> Iterator[Step[Submission]]:
        if w.tick < LAST and all(w.tick - flight.sent < 1 for flight in w.flights):
            yield Step("time passes", w._replace(tick=w.tick + 1))
        for flight in w.flights:
            yield Step(f"the {flight.what} lands", self._landed(w, flight))
        yield from self._submitter(w)
        yield from self._sweeper(w)
        if self.rules.repair and w.made and not w.entry:
            yield Step("repair makes the entry", w._replace(entry=w.writes + 1, writes=w.writes + 1))

    def _landed(self, w: Submission, flight: Flight) -> Submission:
        w = w._replace(flights=w.flights - {flight})
        waiting = w.phase == f"wait for {flight.what}"
        if flight.what == "record":
            return w._replace(made=True, phase="check" if waiting else w.phase)
        if flight.what == "first entry" and w.entry:
            return w._replace(phase="record" if waiting else w.phase)
        written = w._replace(entry=w.writes + 1, writes=w.writes + 1)
        after = {"first entry": "record", "entry again": "done"}[flight.what]
        return written._replace(phase=after if waiting else w.phase)

    def _submitter(self, w: Submission) -> Iterator[Step[Submission]]:
        if w.crash and w.phase not in ("done", "gone"):
            yield Step("the submitter dies", w._replace(phase="gone", crash=False), fault=True)
        match w.phase:
            case "entry":
                yield self._sent(w, "first entry")
            case "record":
                yield self._sent(w._replace(since=w.tick), "record")
            case "check":
                since = 0 if self.rules.counted_from_the_name else w.since
                late = is_created_late(_job(since), w.tick * TICK, SETTINGS)
                if late and self.rules.written_again:
                    yield self._sent(w, "entry again")
                else:
                    yield Step("the submitter returns", w._replace(phase="done"))

    def _sent(self, w: Submission, what: str) -> Step[Submission]:
        flights = w.flights | {Flight(what, w.tick)}
        return Step(f"the submitter sends the {what}", w._replace(phase=f"wait for {what}", flights=flights))

    def _sweeper(self, w: Submission) -> Iterator[Step[Submission]]:
        """It reads the entry, then the record, then deletes; each may take any time."""
        if w.deleting:
            hit = w.entry == w.deleting or not self.rules.delete_on_version
            yield Step("the delete lands", w._replace(entry=0 if hit else w.entry, deleting=0))
        elif not w.sweeper and w.entry:
            yield Step("a sweeper reads the entry", w._replace(sweeper=w.entry))
        elif w.sweeper:
            yield Step("the sweeper goes away", w._replace(sweeper=0), fault=True)
            now = w.tick * TICK if self.rules.quarantine else LAST * TICK
            job = _job(0) if w.made else None
            if action_for(entry_of(_job(0)), job, None, now, SETTINGS) is IndexAction.DELETE:
                yield Step("the sweeper sends its delete", w._replace(sweeper=0, deleting=w.sweeper))


@cache
def _job(submitted: int) -> JobRecord:
    return replace(record(Job()), submitted_at=submitted * TICK)
