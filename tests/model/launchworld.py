"""A small world for launching a group of two: its submitter writes its jobs, then its record, and may die or sleep.

The decisions are `given_up`, `end_reason` and `ended` of `protocol/placements/`. Time is early, while submitters still
try, or late. What agents do is short: once the record is there all vote, and after "held" they start the jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from fray_coordinator.protocol.placements.launching import given_up, is_given_up
from fray_coordinator.protocol.placements.reservations import end_reason, ended
from fray_coordinator.protocol.retention import SUBMITTER_TIMEOUT
from fray_layouts.records import ClusterSettings, ReservationRecord, ReservedPart
from fray_layouts.spec import GangSpec
from tests.model.explorer import Step

SETTINGS = ClusterSettings()
LATE = SETTINGS.quarantine + SUBMITTER_TIMEOUT + 1.0
JOBS = ("a", "b")
HALF, FOR_NOTHING = "a part of a group runs", "a group is void though all of it was wanted"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off, one at a time."""

    jobs_first: bool = True
    tombstone: bool = True
    void: bool = True
    stop_left: bool = True


class Launch(NamedTuple):
    """A state.

    `jobs`: absent, waits, runs, done or stopped. `group`: absent, forming, held, ended. `stops`: of jobs, that were
    sent on condition that the job waits. The submitter is at step `at` of three, and up, asleep or gone.
    """

    at: int = 0
    submitter: str = "up"
    jobs: tuple[str, ...] = ("absent", "absent")
    group: str = "absent"
    stops: frozenset[int] = frozenset()
    late: bool = False
    wish: bool = True


@cache
def group_record(state: str) -> ReservationRecord:
    parts = [ReservedPart(gang=GangSpec(), job=job) for job in JOBS]
    return ReservationRecord(id="g", kind="group", parts=parts, low=len(JOBS), state=state)


class LaunchWorld:
    """The steps under `rules`. faults: the submitter may die or sleep, and a user may stop a job that waits."""

    def __init__(self, rules: Rules, faults: bool = True) -> None:
        self.rules, self.faults = rules, faults
        self.start = Launch(wish=faults)

    def good(self, w: Launch) -> bool:
        """No job waits for ever."""
        return w.submitter != "up" and "waits" not in w.jobs and "runs" not in w.jobs and not w.stops

    def steps(self, w: Launch) -> Iterator[Step[Launch]]:
        yield from self._submitter(w)
        yield from self._pass(w)
        yield from self._repair(w)
        for number in w.stops:
            after = w._replace(stops=w.stops - {number})
            hit = w.jobs[number] == "waits"
            half = HALF if hit and w.group == "held" else ""
            yield Step(
                f"a stop of job {number} lands", _with_job(after, number, "stopped") if hit else after, breaks=half
            )
        for number, job in enumerate(w.jobs):
            if job == "waits" and w.group == "held":
                yield Step(f"job {number} starts", _with_job(w, number, "runs"))
            if job == "runs":
                yield Step(f"job {number} ends", _with_job(w, number, "done"))
            if job == "waits" and w.wish:
                stopped = _with_job(w, number, "stopped")._replace(wish=False)
                yield Step(f"a user stops job {number}", stopped, fault=True)

    def _submitter(self, w: Launch) -> Iterator[Step[Launch]]:
        order = [0, 1, 2] if self.rules.jobs_first else [2, 0, 1]
        if w.submitter == "up" and w.at == len(order):
            yield Step("the submitter returns", w._replace(submitter="gone"))
        elif w.submitter == "up":
            what, after = order[w.at], w._replace(at=w.at + 1)
            if what < len(JOBS):
                yield Step(f"the submitter creates job {what}", _with_job(after, what, "waits"))
            else:
                group = "forming" if w.group == "absent" else w.group
                yield Step("the submitter creates the group", after._replace(group=group))
            if self.faults and not w.late:
                yield Step("the submitter dies", w._replace(submitter="gone"), fault=True)
                yield Step("the submitter sleeps", w._replace(submitter="asleep"), fault=True)
        if w.submitter == "asleep" and w.late:
            yield Step("the submitter wakes", w._replace(submitter="up"))
        if w.submitter != "up" and not w.late:
            yield Step("time passes", w._replace(late=True))

    def _pass(self, w: Launch) -> Iterator[Step[Launch]]:
        if w.group not in ("forming", "held"):
            return
        record = group_record(w.group)
        done = {JOBS[n] for n, job in enumerate(w.jobs) if job in ("absent", "done", "stopped")}
        reason = end_reason(record, done, None, 0.0)
        if reason and (self.rules.void or w.group == "held"):
            assert ended(record, 0.0, reason) is not None
            wanted = w.group == "forming" and "stopped" not in w.jobs
            yield Step(f"the group ends: {reason}", w._replace(group="ended"), breaks=FOR_NOTHING if wanted else "")
        elif w.group == "forming":
            half = any(job in ("absent", "stopped") for job in w.jobs)
            yield Step("all have voted: held", w._replace(group="held"), breaks=HALF if half else "")

    def _repair(self, w: Launch) -> Iterator[Step[Launch]]:
        left = [number for number, job in enumerate(w.jobs) if job == "waits"]
        is_over = w.group == "absent" and is_given_up(0.0, LATE if w.late else 0.0, SETTINGS) and left
        if is_over and self.rules.tombstone:
            state = given_up("g", "default", 0.0, LATE).state
            yield Step("the group is given up", w._replace(group=str(state)))
        if (w.group == "ended" and self.rules.stop_left) or (is_over and not self.rules.tombstone):
            for number in left:
                if number not in w.stops:
                    yield Step(f"a stop of job {number} is sent", w._replace(stops=w.stops | {number}))


def _with_job(w: Launch, number: int, status: str) -> Launch:
    return w._replace(jobs=(*w.jobs[:number], status, *w.jobs[number + 1 :]))
