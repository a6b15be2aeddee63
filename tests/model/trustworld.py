"""A small world for trust: agent A, its beats, the runner of its task, an observer, and C, which runs the next attempt.

The decisions are `trusted_until`, `task_deadline`, `observe`, `has_timed_out`, `declare_dead`, `claim`,
`end_of_attempt` and `requeue_lost` of
`protocol/`. Time goes by in `tick`s, counted in the shortest interval that an agent promises, and all that has a time
is kept relative to now. A runner is not frozen while its host runs: time does not go by before it has done what is due.
The observer reads in every tick once it has met a beat, so none is quicker; `reconcilerworld` has slower ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from fray_coordinator.protocol.claiming import Skip, claim
from fray_coordinator.protocol.commit import (
    AttemptEnd,
    end_of_attempt,
    requeue_lost,
)
from fray_coordinator.protocol.failure_detection import declare_dead, has_timed_out, observe
from fray_coordinator.protocol.heartbeat import (
    DEATH_INTERVALS,
    TRUST_INTERVALS,
    task_deadline,
    trusted_until,
)
from fray_coordinator.protocol.stopping import ChildVerdict
from fray_layouts.records import (
    AgentRecord,
    AttemptExit,
    ClusterSettings,
    JobLease,
    Suspect,
)
from tests.model.essence import NOW, Job, essence, record
from tests.model.explorer import Step

A, C = "A", "C"
BUSY, IDLE, GRACE = 1.0, 2.0, 2.0
SETTINGS = ClusterSettings(beat_interval=BUSY, idle_beat_interval=IDLE, outage_grace=GRACE, requeue_backoff=0.0)
BEAT = 7


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off, one at a time."""

    dated_from_a_send: bool = True
    dated_from_the_first_send: bool = True
    observers_wait_longer: bool = True
    the_runner_has_the_deadline: bool = True
    a_passed_deadline_stands: bool = True
    suspension_counts: bool = True
    a_shorter_promise_binds_when_sent: bool = True
    a_longer_promise_counts_when_applied: bool = True
    claimed_under_the_shorter_promise: bool = True
    runners_get_the_shortest_trust: bool = True
    started_only_with_trust: bool = True
    requeued_when_the_tree_is_gone: bool = True
    runners_hold_the_hosts_lock: bool = True
    the_grace_ends: bool = True


class Sent(NamedTuple):
    """The beat that A waits for: flying, applied, rejected. `ago`: since the send that trust is dated from."""

    promise: float
    fate: str
    ago: float = 0.0


REJECTED = Sent(BUSY, "rejected")
"""A rejected beat, whose promise and time no longer matter."""


class Trusting(NamedTuple):
    """A state.

    Of A: its mode (up, frozen, suspended with its host, fenced, killed); the `stray` promise of a beat that it gave up
    and that may still land; whether it knows its record as it is (`fresh`); the longest interval that its record may
    promise, as far as it knows (`bound`); when its trust ends; whether it was told to leave.
    Of its task: none, listed, claimed, running or gone; when its runner kills it; `overtime`: its deadline was moved on
    in an outage, by an agent that knew that its trust was over; `woken`: it passed while the host was suspended.
    Of A's record: `dead`, the interval that its last beat promises, and for how long the observer has seen that beat
    (`age`; None: not yet).
    """

    mode: str = "up"
    sent: Sent | None = None
    stray: float = 0.0
    fresh: bool = True
    bound: float = BUSY
    trusted: float = trusted_until(0.0, BUSY)
    leaving: bool = False
    task: str = "none"
    deadline: float = 0.0
    overtime: bool = False
    woken: bool = False
    dead: bool = False
    promise: float = BUSY
    age: float | None = None
    job: Job = Job()
    faults: frozenset[str] = frozenset()


class TrustWorld:
    """The steps under `rules`.

    Args:
        actor: the job is one; it gets no outage grace.
        faults: of silence, freeze, suspension, kill, preemption; each may happen once.
        tick: how much time goes by at once, in intervals.
    """

    def __init__(self, rules: Rules, actor: bool, *faults: str, tick: float = 1.0) -> None:
        self.rules = rules
        self.actor = actor
        self.tick = tick
        self.least = 0.0 if actor else -GRACE - tick
        """Seconds; trust that ended longer ago makes no difference."""
        self.start = Trusting(faults=frozenset(faults))

    def good(self, w: Trusting) -> bool:
        return w.job.holder == C or (w.task == "running" and w.mode == "up" and not w.dead)

    def broken(self, w: Trusting) -> str:
        if w.job.holder == A and w.task in ("claimed", "running") and w.promise > BUSY:
            return "observers wait for a holder as long as for an idle agent"
        beside = w.job.holder == C and w.task == "running" and w.mode != "suspended"
        return "two attempts run at once" if beside and not w.overtime and not w.woken else ""

    def steps(self, w: Trusting) -> Iterator[Step[Trusting]]:
        if w.job.holder == C and w.task != "running":
            return
        due = self._due(w)
        if w.mode == "suspended" or not due:
            yield self._time(w)
        if w.mode != "suspended" and due:
            yield Step("the runner kills the tree", self._gone(w))
        if w.mode == "up":
            if w.task != "gone":
                yield from self._beat(w)
            yield from self._task(w)
        yield from self._landings(w)
        yield from self._others(w)
        yield from self._faults(w)

    # --- time ------------------------------------------------------------------------------------------------------

    def _due(self, w: Trusting) -> bool:
        """Whether the runner has to kill its task now: by the deadline, by end-of-file, or because A says so."""
        obeys = self.rules.the_runner_has_the_deadline or w.mode == "up"
        return w.task == "running" and (w.mode in ("killed", "fenced") or (w.deadline <= 0 and obeys))

    def _time(self, w: Trusting) -> Step[Trusting]:
        after = w
        if w.age is not None:
            seen = observe(_record(w.promise), Suspect(beat=BEAT, age=w.age), None, self.tick)
            after = after._replace(age=min(seen.age, DEATH_INTERVALS * w.promise))
        if w.mode != "suspended" or self.rules.suspension_counts:
            sent = w.sent and self._older(w.sent)
            trusted, ends = max(w.trusted - self.tick, self.least), max(w.deadline - self.tick, 0.0)
            after = after._replace(sent=sent, trusted=trusted, deadline=ends)
        late = w.mode != "suspended" and w.task == "running" and after.trusted < -GRACE
        return Step("time goes by", after, breaks="a task outlives its outage grace" if late else "")

    def _older(self, sent: Sent) -> Sent:
        return sent._replace(ago=min(sent.ago + self.tick, trusted_until(-self.least, sent.promise)))

    def _gone(self, w: Trusting) -> Trusting:
        """The task is gone. A's trust does not matter any more."""
        return w._replace(task="gone", deadline=0.0, overtime=False, woken=False, sent=None, stray=0.0, trusted=0.0)

    # --- the agent -------------------------------------------------------------------------------------------------

    def _beat(self, w: Trusting) -> Iterator[Step[Trusting]]:
        if w.sent is None:
            promise = IDLE if w.task == "none" else BUSY
            binds = trusted_until(0.0, promise)
            trusted = min(w.trusted, binds) if self.rules.a_shorter_promise_binds_when_sent else w.trusted
            if not self.rules.a_longer_promise_counts_when_applied:
                trusted = binds
            sent = Sent(promise, "flying") if w.fresh and not w.dead else REJECTED
            bound = max(w.bound, promise)
            yield Step(f"A sends a beat that promises {promise}", w._replace(sent=sent, trusted=trusted, bound=bound))
            return
        if not self.rules.dated_from_the_first_send:
            yield Step("A sends the same beat again", w._replace(sent=w.sent._replace(ago=0.0)))
        rest = w._replace(sent=None)
        match w.sent.fate:
            case "applied":
                ago = w.sent.ago if self.rules.dated_from_a_send else 0.0
                trusted = max(trusted_until(-ago, w.sent.promise), self.least)
                bound = w.sent.promise
                yield Step("A hears that its beat is applied", rest._replace(trusted=trusted, bound=bound))
            case "rejected":
                yield Step("A hears that its beat is rejected", rest._replace(fresh=True, mode=_fenced(w)))

    def _task(self, w: Trusting) -> Iterator[Step[Trusting]]:
        if w.task == "none" and w.job.status == "pending" and w.trusted > 0 and not w.leaving:
            yield Step("A lists the job", w._replace(task="listed"))
        may_claim = w.bound <= BUSY or not self.rules.claimed_under_the_shorter_promise
        if w.task == "listed" and w.job.status == "pending" and w.trusted > 0 and may_claim:
            yield Step("A claims the job", w._replace(job=_claimed(w.job, A), task="claimed"))
        if w.task == "listed" and w.job.status != "pending":
            yield Step("A lists the job no longer", w._replace(task="none"))
        if w.task == "claimed":
            ends = self._deadline(w)
            worth = ends > 0 and (w.trusted > 0 or not self.rules.started_only_with_trust)
            started = w._replace(task="running", deadline=ends) if worth else self._gone(w)
            yield Step(f"A starts the task until {ends}" if worth else "A does not start the task", started)
        if w.task == "running":
            if w.deadline > 0 or not self.rules.a_passed_deadline_stands:
                ends = self._deadline(w)
                if ends > 0:
                    moved = w._replace(deadline=ends, overtime=w.trusted <= 0 and not w.woken, woken=False)
                else:
                    moved = w._replace(deadline=0.0)
                yield Step(f"A moves the deadline on to {ends}", moved)
            if w.leaving:
                yield Step("the task's grace is over, A kills the tree", self._gone(w))
        gone = w.task == "gone" or (w.leaving and not self.rules.requeued_when_the_tree_is_gone)
        if gone and (job := _given_back(w.job)) is not None:
            yield Step("A requeues the job", w._replace(job=job))

    def _deadline(self, w: Trusting) -> float:
        if not self.rules.the_grace_ends and w.trusted <= BUSY:
            return 2 * BUSY
        if not self.rules.runners_get_the_shortest_trust and w.trusted > BUSY:
            return w.trusted
        return task_deadline(0.0, w.trusted, SETTINGS, self.actor)

    # --- other participants -----------------------------------------------------------------------------------------

    def _landings(self, w: Trusting) -> Iterator[Step[Trusting]]:
        if w.dead:
            return
        beaten = w._replace(age=None, stray=0.0)
        if w.sent is not None and w.sent.fate == "flying":
            yield Step("the beat lands", beaten._replace(promise=w.sent.promise, sent=w.sent._replace(fate="applied")))
        if w.stray:
            sent = w.sent and REJECTED
            yield Step("a beat of before lands", beaten._replace(promise=w.stray, sent=sent, fresh=False))

    def _others(self, w: Trusting) -> Iterator[Step[Trusting]]:
        if w.job.status == "pending":
            yield Step("C claims the job", w._replace(job=_claimed(w.job, C)))
        if w.dead:
            if (job := _requeued(w.job)) is not None:
                yield Step("the dead agent's job is requeued", w._replace(job=job))
            return
        if w.age is None:
            first = observe(_record(w.promise), None, None, None)
            yield Step("the observer meets a new beat of A's", w._replace(age=first.age))
        elif self._doomed(w.promise, Suspect(beat=BEAT, age=w.age)):
            yield Step("the observer declares A dead", _dead(w))
        if w.mode == "killed" and (w.task != "running" or not self.rules.runners_hold_the_hosts_lock):
            yield Step("another agent of the host finds its lock free, and declares it dead", _dead(w))

    def _doomed(self, promise: float, known: Suspect) -> bool:
        if not self.rules.observers_wait_longer:
            return known.age >= TRUST_INTERVALS * promise
        return has_timed_out(_record(promise), known)

    def _faults(self, w: Trusting) -> Iterator[Step[Trusting]]:
        def struck(kind: str, **change: Any) -> Step[Trusting]:
            return Step(kind, w._replace(**change, faults=w.faults - {kind}), fault=True)

        flying = w.sent is not None and w.sent.fate == "flying"
        stray = w.sent.promise if w.sent is not None and flying else w.stray
        busy = w.task in ("claimed", "running")
        if w.mode == "up" and w.sent is not None and w.sent.fate != "rejected" and "silence" in w.faults:
            yield struck("silence", sent=None, stray=stray, fresh=flying)
        if w.mode == "up" and busy:
            if "freeze" in w.faults:
                yield struck("freeze", mode="frozen")
            if "suspension" in w.faults:
                yield struck("suspension", mode="suspended")
            if "preemption" in w.faults:
                yield struck("preemption", leaving=True)
            if "kill" in w.faults:
                yield struck("kill", mode="killed", sent=None, stray=stray, trusted=self.least, deadline=0.0)
        if w.mode == "frozen":
            yield Step("A thaws", w._replace(mode="up"), fault=True)
        if w.mode == "suspended":
            late = w.task == "running" and w.deadline <= 0
            yield Step("the host wakes", w._replace(mode="up", woken=late), fault=True)


def _fenced(w: Trusting) -> str:
    return "fenced" if w.dead else w.mode


def _dead(w: Trusting) -> Trusting:
    assert declare_dead(_record(w.promise), BEAT) is not None, "it was live"
    sent = REJECTED if w.sent and w.sent.fate == "flying" else w.sent
    return w._replace(dead=True, age=None, stray=0.0, sent=sent)


@cache
def _record(promise: float) -> AgentRecord:
    return AgentRecord(id=A, host="a", pool="default", interval=promise, beat=BEAT)


@cache
def _claimed(job: Job, agent: str) -> Job:
    claimed = claim(record(job), job.attempt, JobLease(agent=agent, host=agent, since=NOW), ChildVerdict.KEEP)
    assert not isinstance(claimed, Skip), "it is pending"
    return essence(claimed)


@cache
def _given_back(job: Job) -> Job | None:
    ended = end_of_attempt(record(job), 1, A, AttemptEnd(AttemptExit(kind="preempted")), NOW, SETTINGS)
    return None if ended is None else essence(ended)


@cache
def _requeued(job: Job) -> Job | None:
    freed = requeue_lost(record(job), A, NOW, SETTINGS)
    return None if freed is None else essence(freed)
