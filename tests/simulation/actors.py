"""One simulated cluster of actors, from a seed; `python -m tests.simulation.actors` runs seeds, or replays one.

Hosts, storage and faults are those of the simulation of jobs. Here the jobs are actors under a few names, and programs
call them. Acknowledged calls are never lost, and a caller never goes back to an earlier incarnation.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from fray_agents.tasks.task_handle import TaskSpec
from fray_coordinator.errors import StoreError
from fray_coordinator.protocol.naming import Rank, rank
from fray_coordinator.protocol.transitions import TERMINAL, Status
from fray_layouts.object_keys import EndpointKey, JobKeys
from fray_layouts.records import EndpointRecord, NameRecord
from fray_layouts.spec import ends_with_trust
from tests.simulation.actor_variants import VARIANTS
from tests.simulation.actortasks import DURABLE, ActorTask, CallId, Request, Server
from tests.simulation.callers import Caller
from tests.simulation.campaign import main
from tests.simulation.effects import Run
from tests.simulation.host import Host
from tests.simulation.invariants import Broken, told
from tests.simulation.loop import Participant
from tests.simulation.scenario import STRANGE, Plan, between
from tests.simulation.tasks import HostTask
from tests.simulation.world import World

OUTLIVES = 200.0
"""Virtual seconds for which an endpoint may outlive its job, or a late write, without faults: two repairs, the jitter
of the passes between them, and the death of the agent that ran the last one."""

HARMFUL = ("spoil_job", "spoil_agent", "hold_agent", "restore_job", "spoil_archived", "copy_into_archive")
"""Damage to records on which an actor and its callers depend; it is left out here because every caller must be
answered."""

ANSWERED = 900.0
"""Virtual seconds from the end of the last fault in which every caller has had a reply."""


@dataclass(frozen=True, slots=True)
class Strain(Plan):
    """Faults of actors and calls. Times are in virtual seconds; shares are of all tasks or messages.

    Attributes:
        actor_crash_every: time between crashes of actors. cut_off_every: time until an agent with actors cannot beat.
        outliving: share of processes that outlive their task.
        lost, late: shares of requests and replies.
    """

    actor_crash_every: float
    cut_off_every: float
    outliving: float
    lost: float
    late: float

    @staticmethod
    def drawn(draw: random.Random) -> Strain:
        return Strain(
            actor_crash_every=between(draw, 10, 60),
            cut_off_every=between(draw, 40, 160),
            outliving=between(draw, 0.05, 0.5),
            lost=between(draw, 0.005, 0.05),
            late=between(draw, 0.01, 0.1),
        )


class ActorWorld(World):
    """A cluster with actors and their callers.

    Attributes:
        servers: every server that ever listened, by address.
        closing: whether callers end.
    """

    kind = "actors"
    operating: ClassVar[dict[str, float]] = {}
    strange: ClassVar[dict[str, float]] = {habit: weight for habit, weight in STRANGE.items() if habit not in HARMFUL}
    module = "tests.simulation.actors"
    variants = VARIANTS

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.servers: dict[str, Server] = {}
        self.closing = False
        self.callers: list[Caller] = []
        self._network = random.Random(f"network {seed}")
        self._acknowledged: dict[str, set[CallId]] = {}
        self._endpoints: dict[str, tuple[EndpointRecord, float]] = {}
        self._names: dict[str, NameRecord] = {}
        self._moved: dict[str, tuple[str, int, float]] = {}
        self._closed = False
        self.strain = Strain.drawn(random.Random(f"strain {seed}"))
        self._again_and_again(self.strain.actor_crash_every, self._crash_one)
        self._again_and_again(self.strain.cut_off_every, self._cut_an_agent_off)

    @property
    def plan(self) -> str:
        return f"{self.scenario} {self.hardships} {self.strain}"

    # --- participants

    def _start_user(self, name: str) -> None:
        owner, draw = Participant(name), random.Random(f"caller {self.seed} {name}")
        clock = self.drawn_clock(draw)

        async def live() -> None:
            while True:
                try:
                    core = await self.core(owner, clock)
                    break
                except StoreError:
                    await clock.sleep(1.0)
            self.callers.append(Caller(self, name, core, draw))
            await self.callers[-1].live()

        def again() -> None:
            self.callers = [caller for caller in self.callers if caller.name != name]
            if not self.closing:
                self._start_user(f"{name}'")

        owner.on_crash.append(lambda: self._in(5, again))
        self.spawn(owner, live())

    def task(self, host: Host, spec: TaskSpec, deadline: float) -> HostTask:
        if "ACTOR" in spec.env:
            return ActorTask(self, host, spec, deadline)
        return HostTask(host, spec, deadline)  # a file in the inbox may have become a job

    def process_lives_on_for(self) -> float:
        """Seconds by which a process outlives its task; mostly 0."""
        if not self.stormy or self._network.random() > self.strain.outliving:
            return 0.0
        return self._network.uniform(1, 120)

    def _crash_one(self) -> None:
        running = [task for host in self.hosts for task in host.running if isinstance(task, ActorTask)]
        if running:
            self.draw.choice(running).crash()

    def _cut_an_agent_off(self) -> None:
        """Cut an agent with actors off from the storage, while its actors can still be called."""
        serving = [host.process for host in self.hosts if host.running and host.process in self.connections]
        if serving and (cut := self.draw.choice(serving)) is not None:
            self.note(cut.name, "is cut off", "for 100 s")
            self.connections[cut].cut_until = self.loop.now + 100

    # --- the network between callers and actors

    def send(self, what: Callable[..., object], *args: Any) -> None:
        """Deliver a message after a while, perhaps very late or never."""
        drawn = self._network.random() if self.stormy else 1.0
        if drawn < self.strain.lost:
            return
        delay = (
            self._network.uniform(5, 100)
            if drawn < self.strain.lost + self.strain.late
            else self._network.uniform(0.001, 0.1)
        )
        self.storage.later(delay, what, *args)

    def takes(self) -> float:
        """Seconds that a call takes."""
        return self._network.expovariate(1.0)

    def deliver(self, address: str, request: Request) -> None:
        """Deliver a call to an address, where perhaps no server listens any more."""
        server = self.servers[address]
        if server.process.mode != "gone":
            server.requests.put_nowait(request)
        elif not request.answer.done():
            request.answer.set_exception(ConnectionRefusedError())

    # --- checks

    def task_began(self, run: Run) -> None:
        """An actor is gone before the next copy starts, outage or not, unless it was created to run on."""
        others = [other for other in self.effects.running.get(run.job, ()) if other.end is None]
        super().task_began(run)
        if others and ends_with_trust(self.watching.jobs[run.job].spec):
            message = f"attempt {run.attempt} of {run.job} starts while {others[0].attempt} serves on {others[0].host}"
            self.is_broken(Broken("actors end with the trust in their lease", message, run.job))

    def restored(self, run: Run, state: list[CallId]) -> None:
        """A new attempt continues from `state`.

        An attempt that has ended, but wakes up from a freeze, is refused later.
        """
        if run.end is not None:
            return
        name = "an acknowledged call is never lost"
        if lost := self._acknowledged.get(run.job, set()) - set(state):
            self.is_broken(Broken(name, f"{run.job}~{run.attempt} restored without {sorted(lost)[:3]}", run.job))
        if len(set(state)) < len(state):
            self.is_broken(Broken("no call is applied twice", f"{run.job}~{run.attempt}: {state}", run.job))

    def acknowledged(self, call: CallId, replier: EndpointRecord) -> None:
        if replier.name in DURABLE:
            self._acknowledged.setdefault(replier.job, set()).add(call)

    def met(self, caller: str, before: Rank, endpoint: EndpointRecord) -> None:
        """A caller connects to an actor, or takes its reply."""
        if rank(endpoint) < before:
            message = f"{caller} has met {before} of {endpoint.name}, and now {rank(endpoint)}"
            self.is_broken(Broken("a caller never goes back", message, caller, endpoint.job))

    def found(self, name: str, taken: NameRecord) -> None:
        """A creator was told that the name is taken."""
        if self.storage.was_written_elsewhere(JobKeys.key(taken.job)):
            return
        if taken.job not in self.watching.jobs and f"jobs/{taken.job}.json" not in self.watching.gone:
            message = f"{name} is said to be held for {taken.job}, which never came"
            self.is_broken(Broken("who finds a name finds its job", message, taken.job))

    def _on_write(self, key: str, before: Any, after: Any, sender: Participant) -> None:
        super()._on_write(key, before, after, sender)
        if self.strangers.is_stranger(key):
            return
        try:
            if key.startswith("names/") and after is not None:
                self._name_written(key, msgspec.json.decode(after.data, type=NameRecord))
            elif EndpointKey.parse(key):
                self._endpoint_written(key, after)
        except Broken as broken:
            self.is_broken(broken)

    def _name_written(self, key: str, now: NameRecord) -> None:
        was = self._names.get(key, NameRecord(incarnation=0))
        self._names[key] = now
        self.note("name", key, f"{now.state} {now.job} {rank(now)}")
        if rank(now) < rank(was) or now.incarnation > was.incarnation + 1:
            raise Broken("a name's incarnations grow one by one", f"{key}: {rank(was)} became {rank(now)}", key)
        if now.incarnation == was.incarnation and now.job != was.job:
            message = f"incarnation {now.incarnation} of {key} is {was.job}'s and {now.job}'s"
            raise Broken("an incarnation has one holder", message, key, now.job, was.job)

    def _endpoint_written(self, key: str, after: Any) -> None:
        was = self._endpoints.pop(key, None)
        if after is None:
            return
        record = msgspec.json.decode(after.data, type=EndpointRecord)
        self._endpoints[key] = (record, self.loop.now)
        self.note("endpoint", key, f"{record.job} {rank(record)}")
        if was is not None and rank(record) < rank(was[0]):
            message = f"{key}: {rank(was[0])} became {rank(record)}"
            raise Broken("an endpoint is never replaced by an older one", message, key, record.job)

    # --- the calm

    def _close_up(self) -> None:
        """Wait until every caller is answered."""

    def _settle(self) -> None:
        """Wait until every caller has its reply and no dead endpoint is published; then delete all actors."""
        if not self._closed:
            self._closed, begin = True, self.loop.now
            self._let_everybody_be_answered(begin)
            self._check_endpoints(begin)
            self.closing = True
            self._stop_all(lambda job: True)
        super()._settle()

    def _let_everybody_be_answered(self, begin: float) -> None:
        self.loop.advance(begin + OUTLIVES)
        while late := [caller.name for caller in self.callers if caller.answered < begin]:
            self.loop.advance(self.loop.now + 20)
            if self.loop.now - begin > ANSWERED:
                jobs = [f"{job.id}: {told(job)}" for job in self.watching.jobs.values() if job.status not in TERMINAL]
                raise Broken("every caller is answered", f"{late} are not; {jobs}", *late, *self.watching.jobs)

    def _check_endpoints(self, begin: float) -> None:
        for key, (record, written) in self._endpoints.items():
            job = self.watching.jobs.get(record.job)
            serves = job is not None and job.status == Status.RUNNING and job.attempt == record.attempt
            since = max(written, begin, self._left_at(record))
            if not serves and self.loop.now - since > OUTLIVES:
                message = f"{key} says {record.job}~{record.attempt}, and {told(job)}, since {since:.0f}"
                raise Broken("no endpoint outlives its job for long", message, key, record.job)

    def _left_at(self, record: EndpointRecord) -> float:
        """When the attempt's task ended."""
        run = self.effects.of(record.job, record.attempt)
        return run.end if run is not None and run.end is not None else 0.0

    def _sum_up(self, **amounts: float) -> None:
        super()._sum_up(**amounts, **{"acknowledged calls": sum(len(calls) for calls in self._acknowledged.values())})


if __name__ == "__main__":
    sys.exit(main(ActorWorld))
