"""One simulated cluster from a seed: a storm with all faults, then a calm in which everything must end."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar
from unittest import mock

from fray_agents.tasks.task_handle import TaskSpec
from fray_coordinator import fsck
from fray_coordinator.clock import RandomSource
from fray_coordinator.core import Core, core_on
from fray_coordinator.errors import BadRecord, StoreError
from fray_coordinator.fsck import Problem
from fray_coordinator.jobs.stopping import stop
from fray_coordinator.protocol import retention
from fray_coordinator.protocol.placements import launching
from fray_coordinator.protocol.transitions import TERMINAL
from fray_coordinator.reconcile import admission, removal
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_layouts.records import ClusterSettings, JobRecord
from tests.simulation import (
    agent_variants,
    calm,
    invariants,
    strange_variants,
    submission_variants,
    upkeep_variants,
    variants,
)
from tests.simulation.broken_code import Variants
from tests.simulation.clocks import EPOCH, HostClock
from tests.simulation.effects import Effects
from tests.simulation.honest import HonestStore
from tests.simulation.host import Host
from tests.simulation.invariants import Broken
from tests.simulation.loop import OWNER, Participant
from tests.simulation.mishaps import Mishaps, is_mishap
from tests.simulation.network import StoreConnection
from tests.simulation.operators import USUAL as OPERATING, Operator, Upkeep
from tests.simulation.patches import replaced
from tests.simulation.reports import Reports
from tests.simulation.scenario import SHARES, STRANGE, USUAL, People, Perils, Scenario
from tests.simulation.strange_roots import StrangeRoots
from tests.simulation.strangers import Strangers
from tests.simulation.tasks import HostTask
from tests.simulation.users import User
from tests.simulation.watching import Watching

SWEEP = 10.0
"""Virtual seconds between two looks at all jobs."""


class World(Reports):
    """A cluster and its people."""

    kind = "jobs"
    module = "tests.simulation"
    variants = Variants(
        variants.VARIANTS
        | submission_variants.VARIANTS
        | agent_variants.VARIANTS
        | strange_variants.VARIANTS
        | upkeep_variants.VARIANTS
    )

    shares: ClassVar[dict[str, float]] = SHARES
    strange: ClassVar[dict[str, float]] = STRANGE
    usual: ClassVar[dict[str, float]] = USUAL
    operating: ClassVar[dict[str, float]] = OPERATING
    operator: ClassVar[type[Operator]] = Operator

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seed = str(seed)
        self.root = "memory://sim"
        self.epoch = EPOCH
        self.scenario = Scenario.drawn(random.Random(f"scenario {seed}"))
        self.perils = Perils.drawn(random.Random(f"perils {seed}"), self.shares, self.strange)
        self.mishaps = Mishaps(self, self.perils.mishaps)
        self.strangers = Strangers(self)
        self._stuck = random.Random(f"stuck {seed}")
        self.people = People.drawn(random.Random(f"people {seed}"), self.usual)
        self.upkeep = Upkeep.drawn(random.Random(f"upkeep {seed}"), self.operating)
        self.storage.latest = self.scenario.latest
        self.effects = Effects()
        self.watching = Watching(self)
        self.hosts = self.machines()
        self.calm_since = 0.0
        self.idle_counted = 0
        self._outages = []
        self._started: dict[Participant, float] = {}
        self._agent_seconds = 0.0

    @property
    def plan(self) -> str:
        return f"{self.scenario} {self.hardships} {self.people} {self.perils} {self.upkeep}"

    # --- the run

    def run(self) -> None:
        one_by_one = 1 if self.perils.flood else admission.MAX_CONCURRENT_FILES
        with (
            replaced(self),
            mock.patch.object(retention, "SUBMITTER_TIMEOUT", self.scenario.gives_up),
            mock.patch.object(launching, "SUBMITTER_TIMEOUT", self.scenario.gives_up),
            mock.patch.object(admission, "MAX_CONCURRENT_FILES", one_by_one),
            mock.patch.object(removal, "SWEEP_INTERVAL", calm.ARCHIVE_SWEEP),
        ):
            try:
                self._storm()
                self._calm()
            finally:
                self._agent_seconds += sum(self.loop.now - since for since in self._started.values())
                amounts = {"jobs": len(self.known_jobs), "simulated agent-hours": self._agent_seconds / 3600}
                self._sum_up(**amounts, **{"idle clusters counted": self.idle_counted})
                self.loop.bury()

    def _storm(self) -> None:
        plan = self.scenario
        for number, host in enumerate(self.hosts):
            self._in(self.draw.uniform(0, 5 + 3 * number), host.start_agent)
        for number in range(plan.users):
            self._start_user(f"user{number + 1}")
        for number in range(self.upkeep.operators):
            self._start_person(f"operator{number + 1}", functools.partial(self.operator, self))
        self._again_and_again(plan.crash_every, lambda: self._some_host().go_down("crash"))
        self._again_and_again(plan.freeze_every, lambda: self._some_host().freeze(self._how_long()))
        self._again_and_again(plan.preempt_every, lambda: self._some_host().preempt())
        self._again_and_again(plan.storm_of_sigterms_every, self._sigterm_most)
        self._again_and_again(plan.partition_every, self._partition)
        self._again_and_again(plan.outage_every, self._outage)
        self._again_and_again(plan.unwritable_every, self._write_outage)
        self._again_and_again(plan.once_every, self._run_once)
        self._again_and_again(self.perils.stranger_every, self.strangers.act)
        self._again_and_again(self.perils.refuse_every, self._refuse)
        StrangeRoots(self, plan.storm, lambda begin, end: self._outages.append((begin, end, "all")))
        while self.loop.now < plan.storm:
            self.loop.advance(min(self.loop.now + SWEEP, plan.storm))
            self._sweep()

    def _calm(self) -> None:
        """End the faults.

        All jobs that can run must end within the bound, and retention must remove them in the end.
        """
        self.stormy = False
        self.note("world", "calm begins")
        self.strangers.flood(self.perils.flood)
        self.storage.heal()
        for connection in self.connections.values():
            connection.cut_until = 0.0
            connection.suffer(None)
        self._outages = [(begin, min(end, self.loop.now), kind) for begin, end, kind in self._outages]
        for host in self.hosts:
            if host.process is not None:
                self.loop.wake(host.process)
        begin = self.calm_since = self.loop.now
        self._close_up()
        self._settle()
        self.figures.calm_seconds = self.loop.now - begin
        while True:  # submissions from the storm may land until then, and become jobs too
            self.loop.advance(self.loop.now + calm.LATE)
            if not calm.left(self):
                break
            self._settle()
        if self.strangers.odd:
            calm.check_named(self)
            calm.check_entries(self)
            self._tidy()
        calm.check(self)
        calm.check_held(self)
        calm.wait_out(self)
        calm.check_fsck(self)
        if self.scenario.rests:
            calm.check_rest(self)
        calm.check_idle(self)
        calm.check_woken(self)

    def _tidy(self) -> None:
        """Remove, like people, what `fray fsck` names.

        Then everything that was harmed must end too, and be repaired.
        """
        self.note("world", "is tidied")
        self.strangers.tidy()
        self._settle()
        owner = Participant("mender")

        async def mend() -> None:
            await fsck.repair(await self.core(owner, HostClock(self.loop)))

        self.spawn(owner, mend())
        self.loop.advance(self.loop.now + calm.LATE)  # another pass and repair, which have no problems to report

    def _close_up(self) -> None:
        """Stop the endless jobs, but only after the check whether mail that the storm lost is missed."""
        self._in(calm.AT_EASE + calm.HEARD_ANYWAY, self._stop_all, self._is_to_be_stopped)

    def _is_to_be_stopped(self, job: JobRecord) -> bool:
        """Whether to stop the job; also a child whose parent cannot end yet, because others need its room."""
        nowhere = not any(host.suits(job.spec) for host in self.hosts)
        return _is_endless(job) or nowhere or (job.spec.name == "endless" and self.strangers.excuses(job))

    def _settle(self) -> None:
        """Wait until everything has ended, each next job within the bound."""
        since, left = self.loop.now, calm.left(self)
        while left:
            self.loop.advance(self.loop.now + SWEEP)
            self._sweep()
            calm.check_mail(self)
            calm.check_services(self)
            before, left = left, calm.left(self)
            if left != before:
                since = self.loop.now
            elif self.loop.now - since > calm.BOUND:
                calm.explain(self)

    # --- participants

    def machines(self) -> list[Host]:
        """Make the hosts of this world."""
        return [Host(self, f"h{n + 1}", random.Random(f"host {self.seed} {n}")) for n in range(self.scenario.hosts)]

    def spawn(
        self,
        owner: Participant,
        work: Coroutine[Any, Any, Any],
        then: Callable[[asyncio.Task[Any]], None] | None = None,
    ) -> None:
        """Start a coroutine as a participant; `then` is called at its end, from outside."""
        task = self.loop.create_task(work, context=owner.context())
        task.add_done_callback(then or (lambda ended: self._over(owner, ended)), context=self.owner.context())
        self._started[owner] = self.loop.now
        owner.on_crash.append(lambda: self._stopped(owner))

    async def core(self, owner: Participant, clock: HostClock, newer: bool = False) -> Core:
        """A participant's core, with its own connection to the storage."""
        connection = StoreConnection(self.storage, owner, clock, self.scenario.rates if self.stormy else None, newer)
        connection.mishap = self.mishap
        connection.fate = lambda kind: self._meet(owner, kind)
        self.connections[owner] = connection
        rng = RandomSource(f"chance {self.seed} {self._next()}")
        store = HonestStore(connection, clock, rng, self.scenario.patience)
        store.broken = self._dishonest
        plan = self.scenario
        retention = plan.quarantine + plan.gives_up + calm.IN_ARCHIVE
        settings = ClusterSettings(retention=retention, quarantine=plan.quarantine, outage_grace=plan.outage_grace)
        return await core_on(store, settings, clock, rng)

    def _dishonest(self, broken: Broken) -> None:
        """Report a dishonest outcome, unless strangers wrote the object, which may have any operation id."""
        if not self.strangers.overwritten.intersection(broken.about):
            self.is_broken(broken)

    def user(self, name: str, core: Core, draw: random.Random) -> User:
        """Start a user."""
        return User(self, name, core, draw)

    def _start_user(self, name: str) -> None:
        self._start_person(name, self.user)

    def _start_person(self, name: str, made: Callable[[str, Core, random.Random], User]) -> None:
        owner, draw = Participant(name), random.Random(f"user {self.seed} {name}")
        clock = self.drawn_clock(draw)

        async def live() -> None:
            while True:
                try:
                    core = await self.core(owner, clock, draw.random() < self.hardships.newer)
                    break
                except StoreError:
                    await clock.sleep(1.0)
            await made(name, core, draw).live()

        def again() -> None:
            if self.stormy:
                self._start_person(f"{name}'", made)

        owner.on_crash.append(lambda: self._in(20, again))
        self.spawn(owner, live())

    def _stop_all(self, wanted: Callable[[JobRecord], bool]) -> None:
        """Stop every such job from now on, also one that was submitted in the storm and lands late."""
        owner = Participant("janitor")

        async def stop_all() -> None:
            core = await self.core(owner, HostClock(self.loop))
            while True:
                for job in list(self.watching.jobs.values()):
                    if wanted(job) and not _is_over(job):
                        await stop(core, job.id, "closing time")
                        await asyncio.sleep(self.draw.uniform(0, 2))
                await asyncio.sleep(5)

        self.spawn(owner, stop_all())

    def _run_once(self) -> None:
        """Run `fray coordinate --once`, like a cron job."""
        owner = Participant(f"once{self._next()}")
        clock = self.drawn_clock(self.draw)

        async def once() -> None:
            try:
                core = await self.core(owner, clock)
                await Reconciler(core, f"once-{core.rng.token()}").run_once()
            except (StoreError, BadRecord):
                return

        self.spawn(owner, once())

    # --- used by participants and observers

    def mishap(self, place: str) -> None:
        self.mishaps.at(place)

    def troubles(self) -> list[Problem]:
        """The problems that `fray fsck` finds now."""
        owner, found = Participant("fsck"), self.loop.create_future()

        async def look() -> None:
            found.set_result(await fsck.check(await self.core(owner, HostClock(self.loop))))

        self.spawn(owner, look())
        while not found.done():
            self.loop.advance(self.loop.now + 1)
        troubles: list[Problem] = found.result()
        return troubles

    def endless(self) -> list[str]:
        """Jobs that never end unless somebody stops them."""
        jobs = self.watching.jobs.values()
        return [job.id for job in jobs if _is_endless(job) and not _is_over(job)]

    def task(self, host: Host, spec: TaskSpec, deadline: float) -> HostTask:
        """A task that starts on the host."""
        return HostTask(host, spec, deadline)

    def deaf_until(self) -> float:
        """The time until which a task that starts now hears nothing from its agent."""
        if not self.stormy or not self._stuck.random() < self.perils.stuck:
            return 0.0
        self.storage.faults["stuck task"] += 1
        return self.loop.now + self._stuck.uniform(5, 120)

    # --- inside

    def _sweep(self) -> None:
        """Check all jobs: whether one has a holder also depends on agents' memories, whose changes are not seen."""
        for job in self.watching.jobs:
            invariants.reachable(self.watching, job, "a sweep")

    def _stopped(self, owner: Participant) -> None:
        self._gone_at[owner] = self.loop.now
        self.connections.pop(owner, None)
        since = self._started.pop(owner, self.loop.now)
        if any(host.process is owner or owner.name.startswith(f"{host.name}.") for host in self.hosts):
            self._agent_seconds += self.loop.now - since

    def _over(self, owner: Participant, task: asyncio.Task[Any]) -> None:
        if (error := task.exception()) is not None:
            self._unexpected(owner, error)
        self.loop.crash(owner)

    def _on_write(self, key: str, before: Any, after: Any, sender: Participant) -> None:
        try:
            self.watching.on_write(key, before, after, sender)
        except Broken as broken:
            self.is_broken(broken)

    def _loop_error(self, context: dict[str, Any]) -> None:
        if context["message"] == "an agent's task ended with an error":
            self._unexpected(OWNER.get(), context["exception"])

    def _unexpected(self, owner: Participant, error: BaseException) -> None:
        if is_mishap(error):
            return
        broken = Broken("nobody ends by an unexpected error", f"{owner}: {error!r}", owner.name)
        broken.__cause__ = error
        self.is_broken(broken)


def _is_over(job: JobRecord) -> bool:
    return job.status in TERMINAL or job.stop is not None


def _is_endless(job: JobRecord) -> bool:
    """A child ends with its parent; this must be stopped."""
    return job.spec.name == "endless" and job.parent is None
