"""A small world for one job: two agents, its index entries, their heartbeats, the reaper, and a person who stops it.

The real functions of `protocol/` make every decision. This module adds the rest: the order of requests, writes and
deletes that land late, crashes, and a frozen agent that wakes up as a zombie. Agent A may fail; agent C never does, so
that some agent continues. Times, versions and ids of writes are left out: a conditional write is in flight only while
the record is the expected one, and a write that would be rejected simply no longer exists.

`jobstate.Rules` are the rules that close a hole. Each can be switched off: then the world changes the decision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache

from msgspec.structs import replace

from fray_coordinator.protocol.claiming import IndexAction, Skip, action_for, claim, holds_attempt
from fray_coordinator.protocol.commit import (
    AttemptEnd,
    end_of_attempt,
    requeue_lost,
)
from fray_coordinator.protocol.failure_detection import (
    UNLISTED_BEATS,
    MissedJob,
    declare_dead,
    is_dropped,
    needs_reaping,
)
from fray_coordinator.protocol.heartbeat import (
    HeartbeatInput,
    is_fenced,
    next_beat,
    with_mail,
)
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.protocol.stopping import ChildVerdict, request_stop
from fray_coordinator.protocol.transitions import Status
from fray_layouts.records import (
    AttemptExit,
    ClusterSettings,
    Holding,
    JobLease,
    Resources,
)
from tests.model.essence import NOW, Beat, Job, agent_essence, agent_record, essence, record
from tests.model.explorer import Found, Step, explore
from tests.model.jobstate import (
    ABSENT,
    ENDS,
    REQUEUED_FROM_THE_LIVING,
    THROWN_AWAY,
    A,
    Agent,
    C,
    Rules,
    World,
    last_words,
)

SETTINGS = ClusterSettings(requeue_backoff=0.0)


class JobWorld:
    """The steps of the world under `rules`. `faults`: of crash, freeze, failure, restart, preemption, stop.

    `joins`: A is only about to create its record. `observed`: somebody looks for jobs that A does not list.
    """

    def __init__(self, rules: Rules, faults: frozenset[str], joins: bool, observed: bool) -> None:
        self.rules = rules
        self.observed = observed
        self.start = World(faults=faults, beat_a=Beat(ABSENT if joins else "live"))
        self._care = cache(self._decide_care)
        self._end = cache(self._decide_end)
        self._requeue = cache(self._decide_requeue)

    def good(self, w: World) -> bool:
        return w.job.over

    def steps(self, w: World) -> Iterator[Step[World]]:
        for step in self._steps(w):
            yield dataclasses.replace(step, state=last_words(step.state)) if step.state.job.over else step

    def _steps(self, w: World) -> Iterator[Step[World]]:
        yield from self._flights(w)
        for name in (A, C):
            yield from self._agent(w, name)
        yield from self._faults(w)
        yield from self._death_and_reaping(w)
        yield from self._reader(w)
        if self.observed:
            yield from self._observer(w)

    # --- writes -----------------------------------------------------------------------------------------------------

    def _decide_end(self, job: Job, attempt: int, agent: str, phase: str) -> Job | None:
        """The record that the holder writes at the end of its attempt; None: nothing is left to write."""
        seen = record(job) if self.rules.holder_heeds_stop else replace(record(job), stop=None)
        complete = self.rules.complete_result_commits
        ending = AttemptEnd(AttemptExit(kind=ENDS[phase]), complete_before_stop=complete, restart=phase == "restart")
        named = (attempt, agent) if self.rules.fence else (job.attempt, job.holder)
        wanted = end_of_attempt(seen, *named, ending, NOW, SETTINGS)
        return None if wanted is None else essence(wanted)._replace(stop=job.stop or wanted.stop is not None)

    def _decide_requeue(self, job: Job, dead: str) -> Job | None:
        seen = record(job) if self.rules.reaper_heeds_stop else replace(record(job), stop=None)
        wanted = requeue_lost(seen, dead, NOW, SETTINGS)
        return None if wanted is None else essence(wanted)._replace(stop=job.stop)

    def _decide_care(self, entry: int, job: Job, holder: Beat | None) -> IndexAction:
        real = record(job)
        agent = agent_record(job.holder, holder) if holder and holder.state != ABSENT else None
        named = entry if self.rules.attempt_in_entry else job.attempt
        care = action_for(dataclasses.replace(entry_of(real), attempt=named), real, agent, NOW, SETTINGS)
        if care is IndexAction.REQUEUE and not self.rules.finder_requeues:
            return IndexAction.LEAVE
        if care is IndexAction.LEAVE and job.status == Status.RUNNING and not self.rules.entry_outlives_claim:
            return IndexAction.DELETE
        return care

    def _name(self, attempt: int) -> int:
        return attempt if self.rules.attempt_in_entry else 1

    def _write(
        self, w: World, label: str, new: Job | None, fault: bool = False, end: tuple[str, str, int] | None = None
    ) -> Step[World]:
        """Replace the job's record by `new`: from now on every other write that expected the old one is rejected.

        Args:
            end: phase, agent and attempt, if this is how a holder ends its attempt.
        """
        assert new is not None
        old, breaks = w.job, ""
        if old.over:
            breaks = "something left a terminal state"
        elif end is not None and not holds_attempt(record(old), end[2], end[1]):
            breaks = "an attempt was ended by another than its holder"
        elif end is not None and end[0] == "success" and new.status == Status.STOPPED:
            breaks = THROWN_AWAY
        elif "death" in label and w.a.mode == "up" and w.beat_a.state in ("live", ABSENT):
            breaks = REQUEUED_FROM_THE_LIVING
        elif new.attempt < old.attempt:
            breaks = "an attempt went back"
        elif old.stop and new.attempt > old.attempt:
            breaks = "a later attempt came after an acknowledged stop"
        elif new.failures > old.failures and ("death" in label or "preemption" in label):
            breaks = "a preemption spent the failure budget"
        flying = frozenset(f for f in w.flying if f[0] in ("delete", "tended", "create"))
        return Step(label, w._replace(job=new, flying=flying), fault, breaks)

    def _without_entry(self, w: World, entry: int) -> World:
        """The entry is deleted: a delete on condition of its version is rejected if the name is born again."""
        flying = w.flying - {("tended", entry)}
        return w._replace(entries=w.entries - {entry}, flying=flying)

    # --- late writes ------------------------------------------------------------------------------------------------

    def _flights(self, w: World) -> Iterator[Step[World]]:
        for flight in w.flying:
            kind, rest = flight[0], w._replace(flying=w.flying - {flight})
            match flight:
                case ("delete", entry) | ("tended", entry):
                    yield Step(f"a delete of entry {entry} lands", self._without_entry(rest, entry))
                case ("create", entry):
                    yield Step(f"A's creation of entry {entry} lands", rest._replace(entries=w.entries | {entry}))
                case ("claim", agent):
                    yield self._write(rest, f"{agent}'s claim lands", self._claimed(w.job, agent))
                case (_, agent, attempt):
                    wanted = self._end(w.job, attempt, agent, kind)
                    yield self._write(rest, f"{agent}'s {kind} lands", wanted, end=(kind, agent, attempt))

    def _claimed(self, job: Job, agent: str) -> Job | None:
        wanted = claim(record(job), job.attempt, JobLease(agent=agent, host=agent, since=NOW), ChildVerdict.KEEP)
        return None if isinstance(wanted, Skip) else essence(wanted)

    # --- agents -----------------------------------------------------------------------------------------------------

    def _agent(self, w: World, name: str) -> Iterator[Step[World]]:
        me: Agent = w.a if name == A else w.c
        seen: Beat = w.beat_a if name == A else w.beat_c
        if me.mode != "up":
            return
        if seen.state == ABSENT:
            yield Step(f"{name}'s record is created", w._replace(beat_a=Beat()))
        elif is_fenced(agent_record(name, seen)):
            yield Step(f"{name} sees that it is dead", w._replace(a=Agent("gone")))
        else:
            yield from self._beat(w, name, me, seen)
        match me.phase:
            case "idle":
                yield from self._try_claim(w, name, seen)
            case "claiming":
                yield from self._resolve_claim(w, name, me)
            case "running":
                yield from self._run(w, name, me, seen)
            case "requeued":
                yield from self._enter_next(w, name, me)
            case _:
                yield from self._finish(w, name, me)

    def _is(self, w: World, name: str, agent: Agent) -> World:
        return w._replace(a=agent) if name == A else w._replace(c=agent)

    def _beat(self, w: World, name: str, me: Agent, seen: Beat) -> Iterator[Step[World]]:
        rules = {"requeued": self.rules.listed_until_next_entry, "claiming": self.rules.unresolved_claim_listed}
        listed = me.attempt if rules.get(me.phase, True) else 0
        pulse = HeartbeatInput({"j": Holding(attempt=listed)} if listed else {}, 5.0, Resources())
        new = agent_essence(next_beat(agent_record(name, seen), pulse))
        if self.observed and name == A:
            yield from self._beat_in_two_steps(w, new, listed)
        elif new != seen:
            after = w._replace(beat_a=new) if name == A else w._replace(beat_c=new)
            yield Step(f"{name} beats, listing {listed or 'nothing'}", after)

    def _beat_in_two_steps(self, w: World, new: Beat, listed: int) -> Iterator[Step[World]]:
        """What A lists may change while its beat is on its way. An observer meets each beat that has landed."""
        if w.composed is None:
            yield Step(f"A composes a beat that lists {listed or 'nothing'}", w._replace(composed=listed))
            return
        seen = None if w.unlisted is None or w.composed else (w.unlisted[0], min(w.unlisted[1] + 1, UNLISTED_BEATS))
        landed = w._replace(beat_a=new._replace(listed=w.composed), composed=None, unlisted=seen)
        yield Step(f"A's beat lands, listing {w.composed or 'nothing'}", landed)

    def _try_claim(self, w: World, name: str, seen: Beat) -> Iterator[Step[World]]:
        """From the entry, on condition of the record just read. C never fails, so its claim is one step."""
        if seen.state != "live" and (self.rules.record_first or seen.state != ABSENT):
            return
        for entry in w.entries:
            if entry != self._name(w.job.attempt):
                continue
            if self._recognises(w, w.job.attempt, name):
                found = Agent("up", w.job.attempt, "running", w.job.attempt)
                if not self.rules.nothing_taken_up_again:
                    yield Step(f"{name} finds that it holds the job", self._is(w, name, found))
            elif (claimed := self._claimed(w.job, name)) is None:
                continue
            elif name == C:
                running = Agent("up", w.job.attempt, "running", w.job.attempt)
                yield self._write(self._is(w, C, running), "C claims", claimed)
            else:
                flying = w.flying | {("claim", A)}
                claiming = Agent("up", w.job.attempt, "claiming", w.job.attempt)
                yield Step("A sends a claim", self._is(w, A, claiming)._replace(flying=flying))

    def _resolve_claim(self, w: World, name: str, me: Agent) -> Iterator[Step[World]]:
        if self._recognises(w, me.attempt, name):
            yield Step(f"{name} learns that its claim was applied", self._is(w, name, me._replace(phase="running")))
        elif ("claim", name) not in w.flying:
            yield Step(f"{name} learns that its claim was rejected", self._is(w, name, Agent("up")))
        if not self.rules.unresolved_claim_kept:
            yield Step(f"{name} forgets its unresolved claim", self._is(w, name, Agent("up")), fault=True)

    def _recognises(self, w: World, attempt: int, name: str) -> bool:
        """Whether it takes the record for what its claim made of it; its claim's id is gone once a stop was written."""
        return holds_attempt(record(w.job), attempt, name) and (self.rules.claim_judged_by_content or not w.job.stop)

    def _run(self, w: World, name: str, me: Agent, seen: Beat) -> Iterator[Step[World]]:
        mine = holds_attempt(record(w.job), me.attempt, name)
        yield Step(f"{name}'s task succeeds", self._is(w, name, me._replace(phase="success")))
        if not mine:
            yield Step(f"{name} reads the record: not its own any more", self._is(w, name, Agent("up")))
        if mine and w.job.stop:
            yield Step(f"{name} reads the record and stops its task", self._is(w, name, me._replace(phase="stopping")))
        for fault in ("failure", "restart", "preemption"):
            if name == A and fault in w.faults:
                after = self._is(w, name, me._replace(phase=fault))._replace(faults=w.faults - {fault})
                yield Step(f"{name}'s task ends by {fault}", after, fault=True)
        listed = seen.state == "live" and me.entry <= seen.listed <= me.attempt
        entry = self._name(me.entry)
        if (listed or not self.rules.entry_outlives_claim) and entry in w.entries and ("delete", entry) not in w.flying:
            yield Step(f"{name} sends the delete of entry {entry}", w._replace(flying=w.flying | {("delete", entry)}))

    def _finish(self, w: World, name: str, me: Agent) -> Iterator[Step[World]]:
        """Commit, or do what the end of the attempt needs; if that is rejected, decide again with the new record."""
        flight = (me.phase, name, me.attempt)
        if flight in w.flying:
            return
        wanted = self._end(w.job, me.attempt, name, me.phase)
        if wanted is None:
            yield Step(f"{name} learns how its attempt ended", self._ended(w, name, me))
        elif w.job.stop and me.phase == "success" and not self.rules.decided_again:
            yield Step(f"{name} is rejected because of the stop, and gives up", w, breaks=THROWN_AWAY)
        elif name == C:
            yield self._write(w, f"C commits {me.phase}", wanted, end=flight)
        else:
            yield Step(f"A sends {me.phase}", w._replace(flying=w.flying | {flight}))

    def _ended(self, w: World, name: str, me: Agent) -> World:
        without_entry = self._without_entry(w, self._name(me.entry))
        lasts = 9 if self.rules.later_entry_whoever_requeued else 1
        if w.job.status == Status.PENDING and me.attempt < w.job.attempt <= me.attempt + lasts:
            return self._is(w, name, me._replace(phase="requeued"))
        if holds_attempt(record(w.job), me.attempt + 1, name):
            kept = w if self.rules.entry_outlives_restart else without_entry
            return self._is(kept, name, me._replace(phase="running", attempt=me.attempt + 1))
        return self._is(without_entry, name, Agent("up"))

    def _enter_next(self, w: World, name: str, me: Agent) -> Iterator[Step[World]]:
        later = self._name(w.job.attempt)
        if later in w.entries or w.job.status != Status.PENDING:
            cleaned = w if later == self._name(me.entry) else self._without_entry(w, self._name(me.entry))
            yield Step(f"{name} knows the next entry to exist", self._is(cleaned, name, Agent("up")))
        elif ("create", later) not in w.flying:
            yield Step(f"{name} sends the creation of entry {later}", w._replace(flying=w.flying | {("create", later)}))

    # --- faults, and requests of people -----------------------------------------------------------------------------

    def _faults(self, w: World) -> Iterator[Step[World]]:
        if w.a.mode == "up" and "crash" in w.faults:
            yield Step("A crashes", w._replace(a=Agent("gone"), faults=w.faults - {"crash"}), fault=True)
        if w.a.mode == "up" and "freeze" in w.faults:
            frozen = w.a._replace(mode="frozen")
            yield Step("A freezes", w._replace(a=frozen, faults=w.faults - {"freeze"}), fault=True)
        if w.a.mode == "frozen":
            yield Step("A wakes", w._replace(a=w.a._replace(mode="up")))
        if w.a.mode == "up" and w.a.phase == "running" and "drop" in w.faults:
            yield Step("A drops the job", w._replace(a=Agent("up"), faults=w.faults - {"drop"}), fault=True)
        if "stop" in w.faults and (stopped := request_stop(record(w.job), NOW, "")) is not None:
            after = w._replace(faults=w.faults - {"stop"})
            yield self._write(self._mailed(after), "a person stops the job", essence(stopped), fault=True)
        for flight in w.flying:
            yield Step(f"{flight} is lost", w._replace(flying=w.flying - {flight}), fault=True)

    def _mailed(self, w: World) -> World:
        if w.job.holder == A and (mailed := with_mail(agent_record(A, w.beat_a))) is not None:
            return w._replace(beat_a=agent_essence(mailed))
        return w

    # --- death, reaping, and repair of the index --------------------------------------------------------------------

    def _death_and_reaping(self, w: World) -> Iterator[Step[World]]:
        body = agent_record(A, w.beat_a)
        if w.a.mode != "up" and (dead := declare_dead(body, body.beat)) is not None:
            yield Step("A is declared dead", w._replace(beat_a=agent_essence(dead)))
        if not needs_reaping(body):
            return
        reaped = w.beat_a._replace(reaped=True)
        if (back := self._requeue(w.job, A)) is not None:
            after = w if self.rules.reaping_repeated else w._replace(beat_a=reaped)
            yield self._write(after, "A's death: its job is requeued", back)
        elif w.job.status == Status.PENDING and self._name(w.job.attempt) not in w.entries:
            yield Step("the reaper makes the entry", w._replace(entries=w.entries | {self._name(w.job.attempt)}))
        elif not w.settled:
            yield Step("the reaper finds job and index to agree", w._replace(settled=True))
        if w.settled:
            yield Step("A is reaped", w._replace(beat_a=reaped, settled=False))

    def _reader(self, w: World) -> Iterator[Step[World]]:
        """A reader reads an entry, then its job, then the holder, and repairs the entry. That may take any time."""
        if w.reader is None:
            for entry in w.entries:
                yield Step(f"a reader reads the job of entry {entry}", w._replace(reader=(entry, w.job)))
            return
        entry, job = w.reader
        holder = {A: w.beat_a, C: w.beat_c}.get(job.holder)
        done = w._replace(reader=None)
        yield Step("the reader goes away", done, fault=True)
        match self._care(entry, job, holder):
            case IndexAction.LEAVE:
                yield Step(f"entry {entry} stays", done)
            case IndexAction.DELETE if entry in w.entries:
                yield Step(f"a reader sends the delete of entry {entry}", self._tended(done, entry))
            case IndexAction.RENEW:
                renewed = done._replace(entries=w.entries | {self._name(job.attempt)})
                if not self.rules.later_entry_first:
                    renewed = done  # deletes the old entry and leaves the new one to another reader
                yield Step(f"a reader renews entry {entry}", self._tended(renewed, entry))
            case IndexAction.REQUEUE if (back := self._requeue(w.job, job.holder)) is not None:
                yield self._write(done, f"{job.holder}'s death: a reader requeues the job", back)
            case _:
                yield Step("the reader comes too late", done)

    def _observer(self, w: World) -> Iterator[Step[World]]:
        """An observer reads the job and then its holder, waits for beats, and requeues the job if none lists it.

        It also does what any repair does: it makes missing entries, and requeues jobs of dead agents.
        """
        if w.job.status == Status.PENDING and self._name(w.job.attempt) not in w.entries:
            yield Step("a repair makes the entry", w._replace(entries=w.entries | {self._name(w.job.attempt)}))
        if w.job.holder != A or w.job.status != Status.RUNNING:
            return
        if w.beat_a.state != "live":
            yield self._write(w, "A's death: a repair requeues the job", self._requeue(w.job, A))
        elif w.unlisted is None:
            if not w.beat_a.listed:
                yield Step("an observer sees that A does not list the job", w._replace(unlisted=(w.job, 0)))
        elif self.rules.dropped_are_requeued:
            yield from self._look_again(w, *w.unlisted)

    def _look_again(self, w: World, job: Job, beats: int) -> Iterator[Step[World]]:
        first, last = MissedJob("v", 0), MissedJob("v", beats if self.rules.two_beats_without_it else 2 * beats)
        anew = w._replace(unlisted=None)
        if w.job != job and self.rules.requeued_on_that_version:
            yield Step("the observer sees that the job has changed", anew)
        elif is_dropped(first, last):
            has_it = w.a.mode != "gone" and w.a.phase != "idle" and w.a.attempt == w.job.attempt
            step = self._write(anew, "what A has dropped is requeued", self._requeue(w.job, A))
            yield dataclasses.replace(step, breaks=step.breaks or (REQUEUED_FROM_THE_LIVING if has_it else ""))
        else:
            yield Step("the observer forgets it", anew, fault=True)

    def _tended(self, w: World, entry: int) -> World:
        return w._replace(flying=w.flying | {("tended", entry)}) if entry in w.entries else w


def explored(rules: Rules, *faults: str, joins: bool = False, observed: bool = False, until: str = "") -> Found:
    """Explore every interleaving with these faults."""
    world = JobWorld(rules, frozenset(faults), joins, observed)
    return explore(world.start, world.steps, world.good, until=until)
