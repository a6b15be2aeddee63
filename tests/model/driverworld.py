"""A small world for one driver that owns one child: its death is declared, and its job and the child are ended.

The decisions are `driver_records`, `declare_dead`, `needs_reaping`, `requeue_lost`, `end_of_attempt`, `judge_child`,
`claim` and
`request_stop` of `protocol/`. The driver creates its two records, beats, submits the child and may leave; it may be
killed, or freeze and wake up. Its writes may land at any time, twice, or never once it is gone. Observers declare it
dead if they have seen it silent, and their write may be late. A reaper, a repairer, a claimer and a looker at children
read one record after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from fray_coordinator.protocol.claiming import Skip, claim
from fray_coordinator.protocol.commit import (
    AttemptEnd,
    end_of_attempt,
    requeue_lost,
)
from fray_coordinator.protocol.drivers import DRIVER_ATTEMPT, driver_records
from fray_coordinator.protocol.failure_detection import declare_dead, needs_reaping
from fray_coordinator.protocol.heartbeat import is_fenced
from fray_coordinator.protocol.stopping import ChildVerdict, judge_child, request_stop
from fray_coordinator.protocol.transitions import Status
from fray_layouts.records import (
    AgentRecord,
    AttemptExit,
    ClusterSettings,
    JobLease,
    JobRecord,
    ParentLink,
)
from tests.model.essence import NOW, SPEC, Job, essence, record
from tests.model.explorer import Found, Step, explore

SETTINGS = ClusterSettings()
AGENT, DRIVER = driver_records("D", "j", "host", "ns", "ann", "train.py", NOW, 5.0)
BEATS = 2


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that can be switched off."""

    agent_first: bool = True
    repair_looks_at_jobs: bool = True
    one_attempt: bool = True
    dead_at_that_beat: bool = True
    parent_read: bool = True
    child_read_first: bool = True
    children_looked_at_again: bool = True


class Agent(NamedTuple):
    """The essence of the driver's agent record."""

    state: str = "live"
    beat: int = 0
    reaped: bool = False


class Kid(NamedTuple):
    """The child's record; `late`: the driver's job had ended when it was created."""

    job: Job
    late: bool


class Reading(NamedTuple):
    """The progress of a looker at the child, with what it has read of it and of its parent."""

    seen: Kid | None
    parent: Job | None
    family: ChildVerdict | None


Flight = tuple[str, Agent | None]
"""A write on its way: agent, job, child, beat (on that version), dead (at that one's beat)."""


class World(NamedTuple):
    """A state.

    `program`: runs, frozen, gone. `step`: how many of agent, job and child it has sent; `leaving`: how far it is.
    `silent`: the version at which observers have seen the agent silent for long enough.
    """

    program: str = "runs"
    step: int = 0
    leaving: str = ""
    agent: Agent | None = None
    job: Job | None = None
    child: Kid | None = None
    flying: frozenset[Flight] = frozenset()
    repairing: Job | None = None
    claiming: Reading | None = None
    looking: Reading | None = None
    looks: int = 1
    faults: frozenset[str] = frozenset()


class DriverWorld:
    """The steps under `rules`. `faults`: of kill, freeze, leave, and double: one write lands twice."""

    def __init__(self, rules: Rules, *faults: str) -> None:
        self.rules = rules
        self.order = ("agent", "job", "child") if rules.agent_first else ("job", "agent", "child")
        self.start = World(faults=frozenset(faults))

    def good(self, w: World) -> bool:
        """No program that is gone or was declared dead owns anything."""
        stands = w.program != "gone" and w.agent is not None and w.agent.state == "live"
        return stands or all(job is None or job.over for job in (w.job, w.child.job if w.child else None))

    def steps(self, w: World) -> Iterator[Step[World]]:
        if w.program == "runs":
            yield from self._program(w)
        yield from self._mishaps(w)
        for flight in w.flying:
            yield from self._lands(w, flight)
        yield from self._observers(w)
        yield from self._repair(w)
        yield from self._claimer(w)
        yield from self._looker(w)

    # --- records ----------------------------------------------------------------------------------------------------

    def _agent(self, agent: Agent) -> AgentRecord:
        held = {} if agent.state == "left" else AGENT.holdings
        return replace(AGENT, state=agent.state, beat=agent.beat, holdings=held, reaped=agent.reaped)

    def _job(self, job: Job) -> JobRecord:
        spec = DRIVER.spec if self.rules.one_attempt else replace(DRIVER.spec, max_retries_preemption=9)
        return replace(record(job), spec=spec, driver=self.rules.one_attempt)

    def _child(self, job: Job) -> JobRecord:
        return replace(record(job), id="c", spec=SPEC, parent=ParentLink(job="j", attempt=DRIVER_ATTEMPT))

    def _verdict(self, kid: Kid, parent: Job | None) -> ChildVerdict:
        return judge_child(self._child(kid.job), self._job(parent) if parent else None, NOW, 60.0)

    def _becomes(self, w: World, label: str, job: JobRecord) -> Step[World]:
        """The driver's job becomes `job`."""
        new, breaks = essence(job), ""
        if new.status == Status.PENDING:
            breaks = "a driver's job was requeued, so that an agent would run it"
        elif w.program == "runs" and not w.leaving and (w.agent is None or w.agent.state == "live"):
            breaks = "the job of a driver that lives was ended"
        return Step(label, w._replace(job=new), breaks=breaks)

    # --- the driver -------------------------------------------------------------------------------------------------

    def _program(self, w: World) -> Iterator[Step[World]]:
        if w.agent is not None and w.agent.state == "dead":
            yield Step("the driver finds itself dead", w._replace(program="gone"))
        if w.leaving:
            yield from self._leaves(w)
        elif w.step < len(self.order) and self._knows_of_what_it_sent(w):
            what = self.order[w.step]
            if what != "child" or (w.job is not None and w.job.status == Status.RUNNING):
                yield Step(f"the driver sends: {what}", w._replace(step=w.step + 1, flying=w.flying | {(what, None)}))
        if w.agent is not None and w.agent.state == "live" and w.agent.beat < BEATS:
            yield Step("the driver sends a beat", w._replace(flying=w.flying | {("beat", w.agent)}))
        if "leave" in w.faults and w.job is not None and not w.leaving:
            yield Step("the driver leaves", w._replace(leaving="job", faults=w.faults - {"leave"}), fault=True)

    def _knows_of_what_it_sent(self, w: World) -> bool:
        return w.step == 0 or {"agent": w.agent, "job": w.job, "child": w.child}[self.order[w.step - 1]] is not None

    def _leaves(self, w: World) -> Iterator[Step[World]]:
        if w.leaving == "job" and w.job is not None:
            wanted = end_of_attempt(
                self._job(w.job), DRIVER_ATTEMPT, "D", AttemptEnd(AttemptExit(kind="success")), NOW, SETTINGS
            )
            job = w.job if wanted is None else essence(wanted)
            yield Step("it ends its job", w._replace(leaving="child", job=job))
        elif w.leaving == "child":
            yield Step("it ends its child", self._stopped(w._replace(leaving="agent"), w.child))
        elif w.agent is not None:
            left = w.agent._replace(state="left") if w.agent.state == "live" else w.agent
            yield Step("it is gone", w._replace(agent=left, program="gone"))

    def _mishaps(self, w: World) -> Iterator[Step[World]]:
        if "kill" in w.faults and w.program != "gone":
            yield Step("the driver is killed", w._replace(program="gone", faults=w.faults - {"kill"}), fault=True)
        if "freeze" in w.faults and w.program == "runs":
            yield Step("the driver freezes", w._replace(program="frozen", faults=w.faults - {"freeze"}), fault=True)
        if w.program == "frozen":
            yield Step("the driver goes on", w._replace(program="runs"))

    def _lands(self, w: World, flight: Flight) -> Iterator[Step[World]]:
        what, version = flight
        landed = self._landed(w, what, version)
        yield Step(f"{what} lands", landed._replace(flying=w.flying - {flight}), breaks=self._breaks(w, landed))
        if "double" in w.faults:
            yield Step(f"{what} lands, and may again", landed._replace(faults=w.faults - {"double"}), fault=True)
        if what == "dead" or w.program == "gone":
            yield Step(f"{what} is lost", w._replace(flying=w.flying - {flight}))

    def _landed(self, w: World, what: str, version: Agent | None) -> World:
        if what == "agent" and w.agent is None:
            return w._replace(agent=Agent())
        if what == "job" and w.job is None:
            return w._replace(job=essence(DRIVER))
        if what == "child" and w.child is None:
            return w._replace(child=Kid(Job(), w.job is None or w.job.over))
        if what == "beat" and w.agent == version and version is not None:
            return w._replace(agent=version._replace(beat=version.beat + 1))
        if what == "dead" and w.agent is not None and version is not None:
            at = version.beat if self.rules.dead_at_that_beat else w.agent.beat
            if declare_dead(self._agent(w.agent), at) is not None:
                return w._replace(agent=w.agent._replace(state="dead"))
        return w

    def _breaks(self, before: World, after: World) -> str:
        if before.agent is None or after.agent is None or (before.agent.state, after.agent.state) != ("live", "dead"):
            return ""
        said = any(what == "dead" and version == before.agent for what, version in before.flying)
        return "" if said else "a driver was declared dead that had beaten since it was seen silent"

    # --- observers --------------------------------------------------------------------------------------------------

    def _observers(self, w: World) -> Iterator[Step[World]]:
        if w.program != "runs" and w.agent is not None and w.agent.state == "live":
            silent = w._replace(flying=w.flying | {("dead", w.agent)})
            yield Step("observers have seen it silent for long enough", silent)
        if w.agent is None or not needs_reaping(self._agent(w.agent)):
            return
        back = requeue_lost(self._job(w.job), "D", NOW, SETTINGS) if w.job is not None else None
        if back is not None:
            yield self._becomes(w, "the reaper ends its job", back)
        else:
            yield Step("it is reaped", w._replace(agent=w.agent._replace(reaped=True)))

    def _repair(self, w: World) -> Iterator[Step[World]]:
        if w.repairing is not None:
            back = requeue_lost(self._job(w.repairing), "D", NOW, SETTINGS)
            done = w._replace(repairing=None)
            if back is not None and w.job == w.repairing:
                yield self._becomes(done, "the repair ends the job", back)
            else:
                yield Step("the repair is late", done)
        elif self.rules.repair_looks_at_jobs and w.job is not None and w.job.status == Status.RUNNING:
            holder = self._agent(w.agent) if w.agent is not None else None
            if is_fenced(holder):
                yield Step("the repair finds the job without a holder", w._replace(repairing=w.job))

    # --- the child --------------------------------------------------------------------------------------------------

    def _claimer(self, w: World) -> Iterator[Step[World]]:
        d = w.claiming
        if d is None and not self.rules.child_read_first:
            yield Step("C reads the parent", w._replace(claiming=Reading(None, w.job, None)))
        elif d is None and w.child is not None and w.child.job.status == Status.PENDING:
            yield Step("C reads the child", w._replace(claiming=Reading(w.child, None, None)))
        elif d is not None and d.seen is None and w.child is not None and w.child.job.status == Status.PENDING:
            then = Reading(w.child, d.parent, self._verdict(w.child, d.parent))
            yield Step("C reads the child", w._replace(claiming=then))
        elif d is not None and d.seen is not None and d.family is None:
            family = self._verdict(d.seen, w.job) if self.rules.parent_read else ChildVerdict.KEEP
            yield Step(f"C reads the parent: {family.value}", w._replace(claiming=d._replace(family=family)))
        elif d is not None and d.seen is not None and d.family is not None:
            yield self._claims(w._replace(claiming=None), d.seen, d.family)

    def _claims(self, w: World, seen: Kid, family: ChildVerdict) -> Step[World]:
        wanted = claim(self._child(seen.job), seen.job.attempt, JobLease(agent="C", host="C", since=NOW), family)
        if w.child != seen or isinstance(wanted, Skip):
            return Step("C leaves the child", w)
        starts = wanted.status == Status.RUNNING
        breaks = (
            "a child was started that was submitted after its driver's job had ended" if starts and seen.late else ""
        )
        return Step(
            f"C makes the child {wanted.status}", w._replace(child=Kid(essence(wanted), seen.late)), breaks=breaks
        )

    def _looker(self, w: World) -> Iterator[Step[World]]:
        kid = w.child
        if w.looking is not None and w.looking.seen is not None:
            done, seen = w._replace(looking=None), w.looking.seen
            family = self._verdict(seen, w.job)
            after = self._stopped(done, seen) if family is ChildVerdict.STOP else done
            yield Step(f"the looker reads the parent: {family.value}", after)
        elif kid is not None and not kid.job.over and not kid.job.stop and w.looks:
            left = w.looks if self.rules.children_looked_at_again else w.looks - 1
            yield Step("somebody reads the child", w._replace(looking=Reading(kid, None, None), looks=left))
        if kid is not None and kid.job.status == Status.RUNNING and kid.job.stop:
            ending = AttemptEnd(AttemptExit(kind="exited"))
            ended = end_of_attempt(self._child(kid.job), kid.job.attempt, "C", ending, NOW, SETTINGS)
            assert ended is not None
            yield Step("C ends the child", w._replace(child=Kid(essence(ended), kid.late)))

    def _stopped(self, w: World, kid: Kid | None) -> World:
        if kid is None or w.child is None:
            return w
        wanted = request_stop(self._child(w.child.job), NOW, "", by="parent")
        return w if wanted is None else w._replace(child=Kid(essence(wanted), w.child.late))


def explored(rules: Rules, *faults: str, until: str = "") -> Found:
    """Explore every interleaving with these faults."""
    world = DriverWorld(rules, *faults)
    return explore(world.start, world.steps, world.good, until=until)
