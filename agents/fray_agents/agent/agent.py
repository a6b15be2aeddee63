"""The agent: it holds leases, keeps nothing that the bucket does not have, and may die at any instruction."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from fray_agents.agent.attempt_runner import AttemptRunner
from fray_agents.agent.claimer import ClaimCounts, Claimer
from fray_agents.agent.heartbeat import Heartbeat
from fray_agents.agent.leases import HeldLease, Leases
from fray_agents.agent.overcommit import Overcommit
from fray_agents.agent.problems import AgentProblems
from fray_agents.host import agent_lock, directories
from fray_agents.host.capacity import discover
from fray_agents.host.network import NetworkSettings
from fray_agents.tasks.handle import StartTask
from fray_agents.tasks.process_task import RUNNER_TIMEOUT, ProcessTask
from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreError, StoreRefused
from fray_coordinator.jobs import pending_index
from fray_coordinator.persist import persist
from fray_coordinator.protocol import heartbeat
from fray_coordinator.protocol.claiming import holds_attempt
from fray_coordinator.protocol.scheduling import HostKind
from fray_coordinator.reconcile.reconciler import Reconciler
from fray_coordinator.store.records import record_of
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import (
    AgentRecord,
    HintEndpoint,
    Holding,
    JobRecord,
    Resources,
)
from fray_layouts.states import ExitKind, HoldingPhase

log = logging.getLogger("fray")

IMMEDIATE_EXIT_TIMEOUT = 3.0
"""Seconds that an agent told twice to leave still waits for the store."""

KILL_TIMEOUT = 2 * RUNNER_TIMEOUT
"""Seconds that an agent which ends waits for the processes that it has killed."""

RECONCILER_STANDBYS = 50
"""So many agents watch whether the coordinator's pass is run; that nobody does has a chance of e to the -50."""


class ExitReason(StrEnum):
    """Why an agent's run ended."""

    LEFT = "left"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How an agent is run.

    Attributes:
        pool: which pending jobs it looks at.
        capacity: what it offers; None: what the host has.
        work_dir: where tasks have their directories; None: under the temporary directory.
        preemptible: the host may be taken away at any time; jobs that do not want that stay away.
        preemption_grace: seconds between the SIGTERM to this agent and the end of its host.
        start_task: starts a task's processes.
        preload: modules that `serve` has spare processes for callables import ahead.
        cwd: where tasks start; None: a fresh directory each.
        reach: where servers on this host listen and are reached.
        ear: where this agent takes hints; what opened it passes them on to `poke` and `look`.
        lends: it is a private cluster's only one; see `fray_agents.agent.overcommit`.
        rejoins: this process had joined before: it waits until it may join again, also while it is refused.
    """

    pool: str = "default"
    capacity: Resources | None = None
    work_dir: Path | None = None
    preemptible: bool = False
    preemption_grace: float = 25.0
    start_task: StartTask = ProcessTask.start
    preload: Sequence[str] = ()
    cwd: str | None = None
    reach: NetworkSettings = NetworkSettings()  # noqa: RUF009  it is frozen
    hint_endpoint: HintEndpoint | None = None
    lends: bool = False
    rejoins: bool = False


class Agent:
    """One agent id, from its registration until it has left or was declared dead."""

    def __init__(self, core: Core, options: AgentOptions) -> None:
        self.id = AgentKeys.fresh(socket.gethostname(), core.now(), core.rng.token())
        self._core = core
        self._options = options
        self._lock = agent_lock.acquire_lock(core.root, self.id)
        self._work_dir = self._made_work_dir(options.work_dir)
        self._ledger = Leases(options.capacity or discover(self._work_dir))
        self._host = socket.gethostname()
        reach = options.reach.found(core.store.local)
        record = AgentRecord(
            id=self.id,
            host=self._host,
            pool=options.pool,
            interval=core.settings.idle_beat_interval,
            capacity=self._ledger.capacity,
            free=self._ledger.capacity,
            started_at=core.now(),
            preemptible=options.preemptible,
            hint_endpoint=options.hint_endpoint,
            **asdict(reach),
        )
        self._troubles = AgentProblems(core)
        self._heart = Heartbeat(core, self._ledger, record, self._listed, self._mail, self._troubles)
        self._pass = Reconciler(core, self.id, lambda: self._heart.beat)
        self._claimer = Claimer(
            core,
            self._ledger,
            self.id,
            self._host,
            options.pool,
            HostKind(options.preemptible, reach.inbound),
            self._may_claim,
            self._take_over,
            lambda: self._pass.pool_slots(options.pool),
            self._pass.fleet,
            self._troubles,
        )
        self._lending = Overcommit(core, self._ledger, self._may_claim, self._claimer.claim, self._troubles)
        self._carrier = AttemptRunner(
            core,
            self.id,
            self._ledger,
            self._work_dir,
            self._lock.fd,
            options.start_task,
            self._deadline,
            self._start_worked,
            self._heart.trusts,
            self._may_claim,
            lambda: self._heart.leaving,
            self._troubles.warnings,
            reach,
            options.cwd,
        )
        self._shift_ends = 0.0
        self._watches = True
        self._start_failures = 0
        self._terminations = 0
        self._gives_up = asyncio.Event()
        self._broken: asyncio.Queue[BaseException] = asyncio.Queue()
        self._background: set[asyncio.Task[None]] = set()

    def _made_work_dir(self, parent: Path | None) -> Path:
        try:
            return self._lock.work_dir(parent)
        except BaseException:
            self._lock.release()
            raise

    @property
    def tally(self) -> ClaimCounts:
        """What claiming cost so far."""
        return self._claimer.tally

    async def run(self) -> ExitReason:
        """Join the cluster and work until asked to leave or declared dead.

        Raises:
            StoreRefused: it may not join, and has not joined before.
        """
        work = asyncio.create_task(self._work())
        giving_up = asyncio.create_task(self._gives_up.wait())
        try:
            await asyncio.wait([work, giving_up], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for task in (work, giving_up):
                task.cancel()
            await asyncio.gather(work, giving_up, return_exceptions=True)
            await self._put_down()
        return ExitReason.FENCED if self._heart.fenced.is_set() else ExitReason.LEFT

    def terminate(self) -> None:
        """Leave: the first call gives tasks their grace and puts back what does not end; a second is immediate.

        After a second one the store has a moment left to take what is put back; an agent that never joined has nothing
        to put back.
        """
        self._terminations += 1
        self._heart.leaving = True
        if self._terminations > 1:
            asyncio.get_running_loop().call_later(IMMEDIATE_EXIT_TIMEOUT, self._gives_up.set)
        elif not self._heart.joined:
            self._gives_up.set()
        for held in self._ledger.held.values():
            if self._terminations > 1:
                if held.task is not None:
                    held.task.kill()
            else:
                grace = held.job.record.spec.grace if held.job else 0.0
                held.ask_to_stop(min(grace, self._options.preemption_grace), ExitKind.PREEMPTED)
        self._ledger.changed.set()

    def poke(self) -> None:
        """Something was submitted: look for it now rather than at the next poll."""
        self._claimer.wake.set()

    def look(self) -> None:
        """A job that it runs may have been stopped: read their records now rather than when the mail is seen."""
        self._mail()

    async def _work(self) -> None:
        await persist(self._core, self._heart.register, self._may_not_join)
        await persist(self._core, lambda: agent_lock.reap_predecessors(self._core, self._lock))
        loops = [
            self._claimer.run(),
            self._heart.listen(),
            self._hold_deadlines(),
            self._look_at_jobs_for_ever(),
            self._coordinate(),
            self._until_broken(),
        ]
        if self._options.lends:
            loops.append(self._lending.run())
        await self._until_over([asyncio.create_task(loop) for loop in loops])

    def _may_not_join(self, error: StoreError) -> bool:
        return isinstance(error, StoreRefused) and not self._options.rejoins

    async def _until_over(self, loops: list[asyncio.Task[None]]) -> None:
        """Beat until fenced or gone; an error in any loop is an error of the agent."""
        heart = asyncio.create_task(self._heart.run())
        try:
            await asyncio.wait([heart, *loops], return_when=asyncio.FIRST_COMPLETED)
            for loop in (heart, *loops):
                if loop.done():
                    loop.result()
        finally:
            for loop in (heart, *loops):
                loop.cancel()
            await asyncio.gather(heart, *loops, return_exceptions=True)

    async def _put_down(self) -> None:
        """Kill what still runs; what could not be put back is buried by others."""
        tasks = [held.task for held in self._ledger.held.values() if held.task is not None]
        for task in tasks:
            task.kill()
        for work in self._background:
            work.cancel()
        ending = [*self._background, *(asyncio.ensure_future(task.gone()) for task in tasks)]
        left = (await asyncio.wait(ending, timeout=KILL_TIMEOUT))[1] if ending else set()
        if left:  # the lock stays with their runners: nobody takes what they hold for free
            log.error("%s ends, and %d of its tasks cannot be killed; their runners wait for them", self.id, len(left))
        else:
            await directories.remove_tree(self._work_dir)
            self._lock.release()

    def _may_claim(self) -> bool:
        return self._heart.trusts() and not self._heart.leaving and not self._heart.drained and not self._troubles.unfit

    async def _take_over(self, held: HeldLease) -> None:
        if self._heart.leaving:
            held.ask_to_stop(0.0, ExitKind.PREEMPTED)
        try:
            self._spawn(self._carry(held))
        except Exception as error:  # nobody would end what it is about
            self._broken.put_nowait(error)

    async def _carry(self, held: HeldLease) -> None:
        try:
            await self._carrier.carry(held)
        except BaseException as error:  # the job is not ended: it stays listed, until its agent has
            self._broken.put_nowait(error)
            return
        if held.abandoned:
            self._ledger.changed.set()
            return
        self._ledger.remove(held)
        self._claimer.wake.set()

    async def _until_broken(self) -> None:
        raise await self._broken.get()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "an agent's task ended with an error", "exception": error, "task": task}
            asyncio.get_running_loop().call_exception_handler(context)

    def _start_worked(self, worked: bool) -> None:
        self._start_failures = 0 if worked else self._start_failures + 1
        if self._start_failures >= self._core.settings.start_failure_limit:
            self._troubles.unfit = (
                f"claims nothing: {self._start_failures} tasks in a row could not be started; see their jobs"
            )
            self._heart.beat_soon()

    # --- trust and deadlines

    def _deadline(self, job: JobRecord) -> float:
        """Boot time until which the job's task may run if it hears nothing more.

        An actor ends with the trust in its lease, so that its callers do not find two.
        """
        with_trust = job.spec.actor or self._heart.fenced.is_set()
        now, trusted = self._core.clock.boottime(), self._heart.trusted_until
        return heartbeat.task_deadline(now, trusted, self._core.settings, with_trust)

    async def _hold_deadlines(self) -> None:
        while True:
            for held in self._ledger.held.values():
                if held.task is not None and held.job is not None:
                    held.task.set_deadline(self._deadline(held.job.record))
            self._troubles.unkilled = self._unkilled()
            await self._core.clock.sleep(min(1.0, self._core.settings.beat_interval / 5))

    def _unkilled(self) -> str:
        left = {job: held.task.unkilled for job, held in self._ledger.held.items() if held.task}
        return "; ".join(f"SIGKILL does not end processes {pids} of {job}" for job, pids in left.items() if pids)

    # --- the index and the mail

    def _listed(self, holdings: dict[str, Holding]) -> None:
        """An applied beat lists these: the entries of those whose claim is resolved are no longer needed."""
        for job in holdings:
            held = self._ledger.held.get(job)
            if (
                held is not None
                and held.job is not None
                and held.phase == HoldingPhase.RUNNING
                and not held.entry_deleted
            ):
                held.entry_deleted = True
                self._spawn(self._delete_entry(held))
        if self._heart.drained:
            self._heart.leaving = True

    async def _delete_entry(self, held: HeldLease) -> None:
        try:
            await pending_index.delete_entry(self._core, held.entry)
        except StoreError:
            held.entry_deleted = False

    def _mail(self) -> None:
        self._spawn(self._look_at_jobs())

    async def _look_at_jobs_for_ever(self) -> None:
        while True:
            await self._core.clock.sleep(self._core.jittered(self._core.settings.repair_interval))
            with self._troubles.survived("look at what it holds"):
                await self._look_at_jobs()

    async def _look_at_jobs(self) -> None:
        """Read the records of what is held: some are to be stopped, some are no longer ours."""
        await map_concurrently(self._ledger.held.values(), self._look_at_job)

    async def _look_at_job(self, held: HeldLease) -> None:
        attempt = held.attempt
        if held.job is None or held.phase != HoldingPhase.RUNNING:
            return
        try:
            job = record_of(await self._core.records.reread(held.job, one_of_many=True))
        except (StoreError, BadRecord) as error:  # its task goes on; what it is to do is not known
            self._troubles.warnings.warn("%s cannot be looked at: %s", held.entry.job, error)
            return
        if held.phase != HoldingPhase.RUNNING or held.attempt != attempt:  # it ended meanwhile
            return
        if not holds_attempt(job, attempt, self.id):
            held.ask_to_stop(0.0, ExitKind.LOST)
        elif job is not None and job.stop is not None:
            held.ask_to_stop(job.spec.grace, ExitKind.STOPPED)

    async def _coordinate(self) -> None:
        """Take part in the coordinator's pass."""
        try:
            while True:
                begun = self._core.clock.boottime()
                await self._take_turn()
                settings, took = self._core.settings, self._core.clock.boottime() - begun
                if self._on_duty():  # from one look at the agents to the next, or the age of the silent is not counted
                    wait = max(self._core.jittered(settings.pass_interval) - took, settings.poll_interval)
                else:
                    wait = self._core.jittered(settings.repair_interval)
                await self._core.clock.sleep(wait)
        finally:
            self._pass.stop()

    async def _take_turn(self) -> None:
        with self._troubles.survived("run the coordinator's pass"):
            if self._heart.trusts() and not self._heart.leaving:
                await self._pass.turn()
                self._heart.fleet = self._pass.fleet()
            elif self._heart.leaving and self._pass.holds_lease:
                await self._pass.resign()

    def _on_duty(self) -> bool:
        """Whether this agent runs the pass or watches who does; a few of a large fleet do, for a while each."""
        now, fleet = self._core.clock.boottime(), self._heart.fleet
        if now >= self._shift_ends:
            self._shift_ends = now + self._core.jittered(self._core.settings.repair_interval)
            self._watches = fleet <= RECONCILER_STANDBYS or self._core.rng.random() * fleet < RECONCILER_STANDBYS
        return self._watches or self._pass.holds_lease
