"""A small world for one parent and its children: they are submitted, adopted, claimed and stopped while either may end.

The decisions are `judge_child`, `adopted`, `claim`, `request_stop`, `end_of_attempt` and `requeue_lost` of `protocol/`.
Agent A runs the parent's first attempt and may crash, or freeze while the parent's process goes on as a zombie; agent C
never fails. The attempts 1 and 2 submit a child each, or, if it has an id of its own, the same one. D claims children,
a looker reads entries, children and the parent, and stops children if it must. Neither children nor the parent end by
themselves where that would help: one that must end but does not is stuck.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from fray_coordinator.protocol.claiming import Skip, claim, holds_attempt
from fray_coordinator.protocol.commit import (
    AttemptEnd,
    end_of_attempt,
    requeue_lost,
)
from fray_coordinator.protocol.stopping import ChildVerdict, adopted, judge_child, request_stop
from fray_coordinator.protocol.transitions import Status
from fray_layouts.records import (
    AttemptExit,
    ClusterSettings,
    JobLease,
    JobRecord,
    ParentLink,
)
from tests.model.essence import NOW, SPEC, Job, essence, record
from tests.model.explorer import Found, Step, explore

SETTINGS = ClusterSettings(requeue_backoff=0.0)
ADOPTION_TIME = 60.0
NAMED = replace(SPEC, id="own")


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off. With the repair's look at children, the rules of the index are for speed."""

    entry_first: bool = True
    attempt_in_entry: bool = True
    kept_for_the_quarantine: bool = True
    listed_again: bool = True
    earlier_attempts_too: bool = True
    entry_before_adoption: bool = True
    repair_looks_at_children: bool = True
    parent_read: bool = True
    child_read_first: bool = True
    claimed_from_that_version: bool = True
    stop_is_about_that_link: bool = True
    waits_for_adoption: bool = True


class Kid(NamedTuple):
    """A child's record. link: its parent's attempt. late: that attempt had ended when the child was created."""

    job: Job
    link: int
    late: bool


class Entry(NamedTuple):
    """An entry under `children/`: the parent's attempt (0: its name has none), the child's number."""

    attempt: int
    child: int


class Look(NamedTuple):
    """The progress of a looker at a child: by its `entry` (None: by its record), with what it has read.

    `then`: parent (is to be read), drop (the entry, which has no record), stop (the child).
    """

    entry: Entry | None
    child: int
    seen: Kid | None
    then: Literal["parent", "drop", "stop"] = "parent"


class Claim(NamedTuple):
    """D's progress, with what it has read of the child and the parent, and its decision."""

    child: int
    seen: Kid | None
    parent: Job | None = None
    family: ChildVerdict | None = None


class Family(NamedTuple):
    """A state.

    `a`: up, crash, freeze. `processes` of the parent that are alive, as (agent, attempt). `submissions` of the attempts
    1 and 2: start, entering, creating, sent, indexing, linking, done. `old`: entries older than the quarantine.
    `timely`: the highest attempt that has had its time to adopt. `listed`: what a single listing showed that is still
    to be done. `flying`: (what, attempt), with the version that is expected.
    """

    parent: Job = Job("running", 1, "A")
    a: str = "up"
    processes: frozenset[tuple[str, int]] = frozenset({("A", 1)})
    submissions: tuple[str, str] = ("start", "start")
    kids: tuple[Kid | None, ...] = (None,)
    entries: frozenset[Entry] = frozenset()
    old: frozenset[Entry] = frozenset()
    listed: frozenset[Entry] = frozenset()
    timely: int = 0
    flying: frozenset[tuple[str, int, Kid | None]] = frozenset()
    claiming: Claim | None = None
    look: Look | None = None
    faults: frozenset[str] = frozenset()


class ChildWorld:
    """The steps under `rules`. `named`: the children have an id of their own, so that they can be adopted.

    `faults`: of crash, freeze, failure (of the parent), end (of the parent), success (of a child), and sleep: a process
    sleeps for longer than the quarantine between a child's entry and its record.
    """

    def __init__(self, rules: Rules, named: bool, *faults: str) -> None:
        self.rules = rules
        self.named = named
        self.start = Family(kids=(None,) if named else (None, None), faults=frozenset(faults))
        self._verdict = cache(self._decide_verdict)

    def good(self, w: Family) -> bool:
        """No child is left whose parent does not run at its attempt, and no entry, which would keep the record."""
        rightly = {Entry(self._in_name(kid.link), n) for n, kid in enumerate(w.kids) if kid and self._belongs(w, kid)}
        return all(kid is None or kid.job.over or self._belongs(w, kid) for kid in w.kids) and w.entries <= rightly

    def steps(self, w: Family) -> Iterator[Step[Family]]:
        yield from self._parent(w)
        for attempt in (1, 2):
            yield from self._submission(w, attempt)
        for flight in w.flying:
            yield from self._lands(w, flight)
        yield from self._time(w)
        yield from self._claimer(w)
        yield from self._children(w)
        yield from self._start_looking(w) if w.look is None else self._go_on_looking(w, w.look)

    # --- records ----------------------------------------------------------------------------------------------------

    def _belongs(self, w: Family, kid: Kid) -> bool:
        return not kid.job.over and w.parent.status == Status.RUNNING and w.parent.attempt == kid.link

    def _kid(self, kid: Kid) -> JobRecord:
        spec = NAMED if self.named else SPEC
        return replace(record(kid.job), id="c", spec=spec, parent=ParentLink(job="P", attempt=kid.link))

    def _decide_verdict(self, kid: Kid, parent: Job, timely: int) -> ChildVerdict:
        now = NOW + (ADOPTION_TIME if timely == parent.attempt else 0)
        decided = judge_child(self._kid(kid), replace(record(parent), started_at=NOW), now, ADOPTION_TIME)
        return ChildVerdict.STOP if decided is ChildVerdict.WAIT and not self.rules.waits_for_adoption else decided

    def _in_name(self, attempt: int) -> int:
        return attempt if self.rules.attempt_in_entry else 0

    def _write(self, w: Family, label: str, child: int, new: Kid, fault: bool = False) -> Step[Family]:
        """The child's record becomes `new`: every other write that expected the old one is rejected from now on."""
        old, breaks = w.kids[child], ""
        if old is not None and (old.job.over or new.link < old.link):
            breaks = "a child was changed after its end, or given back to an earlier attempt"
        elif new.job.status == Status.RUNNING and new.late:
            breaks = "a child was started that was submitted after its parent's attempt had ended"
        elif old is not None and new.job.stop and not old.job.stop:
            breaks = self._wrongly_stopped(w, old)
        flying = frozenset(f for f in w.flying if f[2] != old or self._number(f[1]) != child)
        return Step(label, w._replace(kids=_put(w.kids, child, new), flying=flying), fault, breaks)

    def _wrongly_stopped(self, w: Family, kid: Kid) -> str:
        if self._belongs(w, kid):
            return "a child of the running attempt was stopped"
        if self.named and not w.parent.over and w.timely <= kid.link:
            return "a child was stopped before an attempt had had its time to adopt it"
        return ""

    def _number(self, attempt: int) -> int:
        return 0 if self.named else attempt - 1

    # --- the parent -------------------------------------------------------------------------------------------------

    def _parent(self, w: Family) -> Iterator[Step[Family]]:
        holder, attempt = w.parent.holder, w.parent.attempt
        for fault in w.faults & {"crash", "freeze"} if w.a == "up" else ():
            left = w.processes - {p for p in w.processes if fault == "crash" and p[0] == "A"}
            yield Step(f"A: {fault}", w._replace(a=fault, processes=left, faults=w.faults - {fault}), fault=True)
        if w.a != "up" and (back := requeue_lost(record(w.parent), "A", NOW, SETTINGS)) is not None:
            yield Step("A is dead, the parent is requeued", w._replace(parent=essence(back)))
        if w.parent.status == Status.PENDING:
            claimed = claim(record(w.parent), attempt, JobLease(agent="C", host="C", since=NOW), ChildVerdict.KEEP)
            assert not isinstance(claimed, Skip)
            yield Step(f"C claims the parent, attempt {attempt}", self._began(w, essence(claimed)))
        if (holder, attempt) in w.processes and (holder == "C" or w.a == "up"):
            yield from self._parent_ends(w, holder, attempt)
        for agent, number in w.processes:
            if not holds_attempt(record(w.parent), number, agent):
                killed = w._replace(processes=w.processes - {(agent, number)})
                yield Step(f"{agent}'s old process {number} is killed", killed)

    def _parent_ends(self, w: Family, agent: str, attempt: int) -> Iterator[Step[Family]]:
        for fault, kind in (("failure", "exited"), ("end", "success")):
            if fault not in w.faults:
                continue
            ending = AttemptEnd(AttemptExit(kind=kind), restart=True)
            wanted = end_of_attempt(record(w.parent), attempt, agent, ending, NOW, SETTINGS)
            assert wanted is not None
            left = w._replace(processes=w.processes - {(agent, attempt)}, faults=w.faults - {fault})
            yield Step(f"the parent: {fault} of attempt {attempt}", self._began(left, essence(wanted)), fault=True)

    def _began(self, w: Family, parent: Job) -> Family:
        """The parent has ended, or is in its next attempt: note what a listing would show now."""
        runs = {(parent.holder, parent.attempt)} if parent.status == Status.RUNNING else set()
        listed = frozenset() if self.rules.listed_again else w.entries
        return w._replace(parent=parent, processes=w.processes | runs, listed=listed)

    # --- submissions ------------------------------------------------------------------------------------------------

    def _submission(self, w: Family, attempt: int) -> Iterator[Step[Family]]:
        """Attempt 3 wants no children; what a dead process had not sent is never sent."""
        if attempt not in {number for _, number in w.processes}:
            return
        child = self._number(attempt)
        entry, kid, me = Entry(self._in_name(attempt), child), w.kids[child], f"process {attempt}"
        sent = any(f[:2] in (("create", attempt), ("link", attempt)) for f in w.flying)
        match w.submissions[attempt - 1]:
            case "start":
                first = "entering" if self.rules.entry_first else "creating"
                then = first if kid is None else self._adopts(kid, attempt)
                yield Step(f"{me} looks for its child: {then}", self._is(w, attempt, then))
            case "entering" | "indexing" as phase:
                then = self._after_entry(phase)
                yield Step(f"{me} makes the entry", self._is(w._replace(entries=w.entries | {entry}), attempt, then))
            case "creating":
                flying = w.flying | ({("create", attempt, None)} if kid is None else set())
                yield Step(f"{me} sends the record", self._is(w._replace(flying=flying), attempt, "sent"))
            case "sent" if not sent and kid is not None:
                after = "done" if self.rules.entry_first else "entering"
                then = after if kid.link == attempt else self._adopts(kid, attempt)
                yield Step(f"{me} learns that there is a record: {then}", self._is(w, attempt, then))
            case "linking" if not sent and kid is not None:
                if adopted(self._kid(kid), "P", attempt) is None:
                    then = "done" if self.rules.entry_before_adoption or kid.link != attempt else "indexing"
                    yield Step(f"{me} knows its child to be adopted, or not", self._is(w, attempt, then))
                else:
                    flying = w.flying | {("link", attempt, kid)}
                    yield Step(f"{me} sends the adoption", w._replace(flying=flying))

    def _after_entry(self, phase: str) -> str:
        if phase == "entering":
            return "creating" if self.rules.entry_first else "done"
        return "linking" if self.rules.entry_before_adoption else "done"

    def _adopts(self, kid: Kid, attempt: int) -> str:
        if adopted(self._kid(kid), "P", attempt) is None:
            return "done"
        return "indexing" if self.rules.entry_before_adoption else "linking"

    def _is(self, w: Family, attempt: int, phase: str) -> Family:
        return w._replace(submissions=_put(w.submissions, attempt - 1, phase))

    def _lands(self, w: Family, flight: tuple[str, int, Kid | None]) -> Iterator[Step[Family]]:
        """A write lands, or is lost if no process is left to repeat it: nothing may depend on either."""
        what, attempt, seen = flight
        child, orphaned = self._number(attempt), attempt not in {number for _, number in w.processes}
        rest = w._replace(flying=w.flying - {flight})
        if seen is None:
            late = w.parent.status != Status.RUNNING or w.parent.attempt != attempt
            new = Kid(Job(), attempt, late)
        else:
            linked = adopted(self._kid(seen), "P", attempt)
            assert linked is not None, "only what changes is sent"
            new = seen._replace(link=attempt, late=False)
        yield self._write(rest, f"process {attempt}'s {what} lands", child, new, orphaned)
        if orphaned:
            yield Step(f"process {attempt}'s {what} is lost", rest)

    # --- time -------------------------------------------------------------------------------------------------------

    def _time(self, w: Family) -> Iterator[Step[Family]]:
        if self.named and w.parent.status == Status.RUNNING and w.timely < w.parent.attempt:
            yield Step(f"attempt {w.parent.attempt} has had its time", w._replace(timely=w.parent.attempt))
        for entry in w.entries - w.old:
            if w.kids[entry.child] is not None:
                continue
            aged = w._replace(old=w.old | {entry})
            if not self._under_way(w, entry.child):
                yield Step(f"the quarantine of {entry} is over", aged)
            elif "sleep" in w.faults and not w.flying:
                asleep = aged._replace(faults=w.faults - {"sleep"})
                yield Step(f"a process sleeps until the quarantine of {entry} is over", asleep, fault=True)

    def _under_way(self, w: Family, child: int) -> bool:
        """Whether a process that lives, or its late write, is between the child's entry and its record."""
        return any(
            phase in ("creating", "sent")
            and self._number(number) == child
            and (("create", number, None) in w.flying or number in {n for _, n in w.processes})
            for number, phase in enumerate(w.submissions, 1)
        )

    # --- claimer, and the children themselves -----------------------------------------------------------------------

    def _claimer(self, w: Family) -> Iterator[Step[Family]]:
        d = w.claiming
        if d is None:
            yield from self._start_claim(w)
        elif d.seen is None:
            kid = w.kids[d.child]
            assert d.parent is not None
            if kid is not None and kid.job.status == Status.PENDING:
                then = d._replace(seen=kid, family=self._verdict(kid, d.parent, w.timely))
                yield Step(f"D reads child {d.child}", w._replace(claiming=then))
        elif d.family is None:
            family = self._verdict(d.seen, w.parent, w.timely) if self.rules.parent_read else ChildVerdict.KEEP
            yield Step(f"D reads the parent: {family.value}", w._replace(claiming=d._replace(family=family)))
        else:
            yield self._claim(w._replace(claiming=None), d, d.family)

    def _start_claim(self, w: Family) -> Iterator[Step[Family]]:
        for child, kid in enumerate(w.kids):
            if not self.rules.child_read_first:
                yield Step(f"D reads the parent of child {child}", w._replace(claiming=Claim(child, None, w.parent)))
            elif kid is not None and kid.job.status == Status.PENDING:
                yield Step(f"D reads child {child}", w._replace(claiming=Claim(child, kid)))

    def _claim(self, w: Family, d: Claim, family: ChildVerdict) -> Step[Family]:
        kid = w.kids[d.child]
        assert kid is not None
        if kid != d.seen and self.rules.claimed_from_that_version:
            return Step("D is rejected", w)
        wanted = claim(self._kid(kid), kid.job.attempt, JobLease(agent="D", host="D", since=NOW), family)
        if isinstance(wanted, Skip):
            return Step(f"D leaves child {d.child}: {family.value}", w)
        return self._write(w, f"D makes child {d.child} {wanted.status}", d.child, kid._replace(job=essence(wanted)))

    def _children(self, w: Family) -> Iterator[Step[Family]]:
        for child, kid in enumerate(w.kids):
            if kid is None or kid.job.status != Status.RUNNING:
                continue
            if kid.job.stop:
                yield self._child_ends(w, child, kid, "exited", fault=False)
            elif "success" in w.faults:
                yield self._child_ends(w._replace(faults=w.faults - {"success"}), child, kid, "success", fault=True)

    def _child_ends(self, w: Family, child: int, kid: Kid, kind: str, fault: bool) -> Step[Family]:
        wanted = end_of_attempt(self._kid(kid), kid.job.attempt, "D", AttemptEnd(AttemptExit(kind=kind)), NOW, SETTINGS)
        assert wanted is not None
        new = kid._replace(job=essence(wanted))
        return self._write(w, f"child {child} ends: {new.job.status}", child, new, fault)

    # --- stopping orphans -------------------------------------------------------------------------------------------

    def _start_looking(self, w: Family) -> Iterator[Step[Family]]:
        for entry in w.entries if self.rules.listed_again else w.listed:
            if self.rules.earlier_attempts_too or w.parent.over:
                look = Look(entry, entry.child, w.kids[entry.child])
                after = w._replace(look=look, listed=w.listed - {entry})
                yield Step(f"somebody reads the child of {entry}", after)
        for child, kid in enumerate(w.kids):
            if self.rules.repair_looks_at_children and kid is not None and not kid.job.over and not kid.job.stop:
                yield Step(f"the repair reads child {child}", w._replace(look=Look(None, child, kid)))

    def _go_on_looking(self, w: Family, look: Look) -> Iterator[Step[Family]]:
        done, entry = w._replace(look=None), look.entry
        without_entry = done._replace(entries=w.entries - {entry}, old=w.old - {entry}, listed=w.listed - {entry})
        match look.then, look.seen:
            case "drop", _:
                yield Step(f"{entry}, which has no record, is deleted", without_entry)
            case _, None:
                young = entry not in w.old and self.rules.kept_for_the_quarantine
                if young or w.kids[look.child] is not None:
                    yield Step(f"{entry} stays", done)
                else:
                    yield Step(f"{entry} has still no record", w._replace(look=look._replace(then="drop")))
            case "parent", kid if entry is not None and self._is_over(entry, kid):
                yield Step(f"{entry} is deleted", without_entry)
            case "parent", kid:
                decided = self._verdict(kid, w.parent, w.timely)
                after = w._replace(look=look._replace(then="stop")) if decided is ChildVerdict.STOP else done
                yield Step(f"the looker reads the parent: {decided.value}", after)
            case "stop", kid:
                yield self._stop(done, look.child, kid)

    def _is_over(self, entry: Entry, kid: Kid) -> bool:
        """Whether the child has ended or was adopted by a later attempt, which the name may not tell."""
        return kid.job.over or (self.rules.attempt_in_entry and kid.link > entry.attempt)

    def _stop(self, w: Family, child: int, seen: Kid) -> Step[Family]:
        kid = w.kids[child]
        assert kid is not None
        wanted = request_stop(self._kid(kid), NOW, "", by="parent")
        if wanted is None or (kid.link != seen.link and self.rules.stop_is_about_that_link):
            return Step(f"child {child} needs no stop", w)
        return self._write(w, f"child {child} is stopped", child, kid._replace(job=essence(wanted)))


def explored(rules: Rules, named: bool, *faults: str, until: str = "") -> Found:
    """Explore every interleaving with these faults."""
    world = ChildWorld(rules, named, *faults)
    return explore(world.start, world.steps, world.good, until=until)


def _put(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*values[:place], value, *values[place + 1 :])
