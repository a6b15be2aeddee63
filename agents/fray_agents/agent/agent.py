"""The agent: joins a cluster, runs its parts, and leaves.

It keeps no state that is not in the bucket, so it may die at any instruction.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

from fray_agents.agent import predecessors
from fray_agents.agent.attempt_runner import AttemptRunner, JobWatch
from fray_agents.agent.claimer import ClaimCounts, Claimer
from fray_agents.agent.devices import CheckChips, ChipWatch, GpuWatch
from fray_agents.agent.gang_runner import GangRunner
from fray_agents.agent.held import HeldLease
from fray_agents.agent.leases import Leases
from fray_agents.agent.membership import Heartbeat, Membership
from fray_agents.agent.overcommit import Overcommit
from fray_agents.agent.placement_loop import PlacementLoop
from fray_agents.agent.pool_environments import PoolEnvironments
from fray_agents.agent.pool_notices import nobody_answers
from fray_agents.agent.problems import run_until_first_ends
from fray_agents.agent.reconciler_loop import ReconcilerLoop
from fray_agents.agent.replica_runner import ReplicaRunner
from fray_agents.agent.scaler_loop import IdleExit, ScalerLoop
from fray_agents.environments.prepare import Preparer
from fray_agents.host import agent_lock
from fray_agents.host.capacity import HostPlace, discover, discover_software
from fray_agents.tasks.process_task import RUNNER_TIMEOUT, ProcessTask
from fray_agents.tasks.task_handle import StartTask
from fray_coordinator.concurrency import start_task
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreError, StoreRefused
from fray_coordinator.jobs import pending_index
from fray_coordinator.jobs.gang_peers import AskPeer
from fray_coordinator.persist import persist
from fray_coordinator.protocol.scaling.provisioning import ScalingScope
from fray_coordinator.store.file_tree import lack_of_room
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, HintEndpoint, Holding, Resources, Software
from fray_layouts.states import ExitKind, HoldingPhase
from fray_runtime import directories
from fray_runtime.network import NetworkSettings

log = logging.getLogger("fray")

IMMEDIATE_EXIT_TIMEOUT = 3.0
"""Seconds that an agent still waits for the store after a second request to leave: it has to exit soon."""

KILL_TIMEOUT = 2 * RUNNER_TIMEOUT
"""Seconds that an agent which exits waits for the processes it has killed: twice the time that a runner may need."""

EndOfHost: TypeAlias = Callable[[], Coroutine[Any, Any, str]]
"""Waits until the host is about to end, and returns the reason."""


class ExitReason(StrEnum):
    """The reason for which an agent's run ended."""

    LEFT = "left"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """The options of an agent.

    Attributes:
        pool: the pool whose pending jobs it claims.
        capacity: the resources that it offers; None: those of the host.
        software: what else jobs may require of it; None: what the host has.
        work_dir: the parent of the tasks' directories; None: the temporary directory.
        preemptible: the host may be taken away at any time; jobs that exclude preemptible hosts do not run here.
        preemption_grace: seconds between the SIGTERM to this agent and the end of its host.
        start_task: starts a task.
        preload: modules that prestarted processes import; `run_agent` uses it.
        cwd: the working directory of tasks; None: a new directory for each.
        network: where servers on this host listen, and the address at which they are reached.
        place: where the host is.
        check_chips: says what is wrong with the host's TPU chips; None: it has none.
        machine: name of the pool's machine to which the host belongs; "" for a host that people maintain.
        provision: the pools whose machines it manages if no other process does. An agent on a machine manages those
            of all pools.
        hint_endpoint: where this agent receives hints; see `fray_agents.agent.hint_listener`.
        overcommits: it is the only agent of a private cluster; see `fray_agents.agent.overcommit`.
        env_cache: bytes that the host's cache of workspaces and environments may use; None: see `host_cache`.
        idle_exit: seconds without work after which it leaves; None: it stays.
        end_of_host: makes `run_agent` leave before the host ends; None: nothing announces that end.
        rejoins: this process has joined before. It waits until it may join again, even while the store refuses it.
        send_hints: sends hints to these endpoints, so that the agents there read their placements.
        ask_peer: asks the agent that receives hints at an endpoint whether it is alive.
    """

    pool: str = "default"
    capacity: Resources | None = None
    software: Software | None = None
    work_dir: Path | None = None
    preemptible: bool = False
    preemption_grace: float = 25.0
    start_task: StartTask = ProcessTask.start
    preload: Sequence[str] = ()
    cwd: str | None = None
    network: NetworkSettings = NetworkSettings()  # noqa: RUF009  it is frozen
    place: HostPlace = field(default_factory=HostPlace)
    check_chips: CheckChips | None = None
    machine: str = ""
    provision: frozenset[str] = frozenset()
    hint_endpoint: HintEndpoint | None = None
    overcommits: bool = False
    env_cache: int | None = None
    idle_exit: float | None = None
    end_of_host: EndOfHost | None = None
    rejoins: bool = False
    send_hints: Callable[[Collection[HintEndpoint]], None] = lambda endpoints: None
    ask_peer: AskPeer = nobody_answers


class Agent:
    """One agent id, from its registration until it has left or was declared dead."""

    def __init__(self, core: Core, options: AgentOptions) -> None:
        self.id = AgentKeys.fresh(socket.gethostname(), core.now(), core.rng.token())
        self._core = core
        self._options = options
        self._lock = agent_lock.acquire_lock(core.root, self.id)
        self._work_dir = self._created_work_dir(options.work_dir)
        network = options.network.resolved(core.store.local)
        self.member = self._new_member(network)
        self._fatal_errors: asyncio.Queue[BaseException] = asyncio.Queue()
        self._heartbeat = Heartbeat(self.member, self._on_listed, self.check_jobs)
        self._claimer = Claimer(
            self.member, self._take_over, lambda: self._placements.plan_rang(), self._fatal_errors.put_nowait
        )
        self._job_watch = JobWatch(self.member)
        self._reconciler_loop = ReconcilerLoop(self.member, options.send_hints)
        self.member.end_quiet = self._reconciler_loop.end_quiet
        self._gpus = GpuWatch(self.member)
        self._chips = ChipWatch(self.member, options.check_chips)
        preparer = Preparer(core, options.env_cache)
        self._pool_environments = PoolEnvironments(self.member, preparer, self._work_dir)
        tasks = ReplicaRunner(
            self.member,
            self._work_dir,
            self._lock.fd,
            options.start_task,
            self._gpus,
            self._chips,
            preparer,
            network,
            options.cwd,
        )
        self._attempt_runner = AttemptRunner(self.member, tasks)
        self._placements = PlacementLoop(
            self.member,
            GangRunner(self.member, tasks, options.ask_peer, self._reconciler_loop.notify_pass),
            self._room_became_free,
            self._reconciler_loop.notify_pass,
            self._spawn,
            self._fatal_errors.put_nowait,
            self._claimer.claim,
        )
        self._terminations = 0
        self._exit_now = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()

    def _created_work_dir(self, parent: Path | None) -> Path:
        try:
            return self._lock.work_dir(parent)
        except BaseException:
            self._lock.release()
            raise

    def _new_member(self, network: NetworkSettings) -> Membership:
        """The membership of an agent that has not joined yet."""
        core, options = self._core, self._options
        capacity = options.capacity or discover(self._work_dir)
        record = AgentRecord(
            id=self.id,
            host=socket.gethostname(),
            pool=options.pool,
            interval=core.settings.beat_interval,  # it may claim at once
            capacity=capacity,
            free=capacity,
            started_at=core.now(),
            preemptible=options.preemptible,
            software=options.software or discover_software(),
            hint_endpoint=options.hint_endpoint,
            zone=options.place.zone,
            region=options.place.region,
            labels=dict(options.place.labels),
            slice=options.place.slice,
            supports_placements=True,
            machine=options.machine,
            **asdict(network),
        )
        return Membership(core, record, Leases(capacity))

    @property
    def claim_counts(self) -> ClaimCounts:
        """The claims that were won and rejected so far."""
        return self._claimer.counts

    async def run(self) -> ExitReason:
        """Join the cluster and work until asked to leave or declared dead.

        Raises:
            StoreRefused: the store refuses it, and this process has not joined before.
        """
        work = asyncio.create_task(self._work())
        giving_up = asyncio.create_task(self._exit_now.wait())
        try:
            await asyncio.wait([work, giving_up], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for task in (work, giving_up):
                task.cancel()
            await asyncio.gather(work, giving_up, return_exceptions=True)
            await self._kill_tasks()
        return ExitReason.FENCED if self.member.fenced.is_set() else ExitReason.LEFT

    def terminate(self) -> None:
        """Leave: the first call gives tasks their grace and requeues those that do not end; a second acts at once.

        After a second call the store has `IMMEDIATE_EXIT_TIMEOUT` to take what is requeued. An agent that never joined
        has nothing to requeue.
        """
        self._terminations += 1
        self.member.leaving = True
        how = "at once" if self._terminations > 1 else f"within {self._options.preemption_grace:g} s"
        leases, placements = self.member.leases.held.values(), self.member.leases.placements.values()
        runs = any(lease.phase != HoldingPhase.ENDING for lease in leases) or any(held.at_work for held in placements)
        log.info("asked to leave: %s", f"its jobs end {how}" if runs else "no job runs")
        if self._terminations > 1:
            asyncio.get_running_loop().call_later(IMMEDIATE_EXIT_TIMEOUT, self._exit_now.set)
        elif self.member.stored is None:
            self._exit_now.set()
        for lease in leases:
            if self._terminations > 1:
                if lease.task is not None:
                    lease.task.kill()
            else:
                grace = lease.job.record.spec.grace if lease.job else 0.0
                lease.ask_to_stop(min(grace, self._options.preemption_grace), ExitKind.PREEMPTED)
        self._placements.leave(self._options.preemption_grace, self._terminations > 1)
        self.member.leases.changed.set()

    def look_for_work(self) -> None:
        """Look for work now and not at the next poll: something was submitted."""
        self._claimer.wake.set()

    def check_jobs(self) -> None:
        """Read the records of the jobs that it runs now: one of them may have been stopped."""
        self._spawn(self._job_watch.check())
        self._placements.poll_soon()

    def check_placements(self) -> None:
        """Read the placements now: something about them has changed."""
        self._reconciler_loop.wake.set()
        self._placements.plan_rang()
        self._placements.poll_soon()

    async def _work(self) -> None:
        await self._chips.check_host()
        await persist(self._core, self._heartbeat.register, self._may_not_join)
        await self._reconciler_loop.end_quiet()  # it may claim at once, before the pass has seen its record
        await persist(self._core, lambda: predecessors.reap_predecessors(self._core, self._lock))
        loops = [
            self._claim(),
            self._heartbeat.watch_mail(),
            self._renew_deadlines(),
            self._job_watch.run(),
            self._placements.run(),
            self._reconciler_loop.run(),
            self._raise_fatal_error(),
        ]
        if self._gpus.names:
            loops.append(self._gpus.run())
        if self._options.check_chips is not None:
            loops.append(self._chips.run())
        if self._options.idle_exit is not None:
            loops.append(IdleExit(self.member, self._options.idle_exit, self.terminate).run())
        provision, on_machine = self._options.provision, bool(self._options.machine)
        scaling = ScalerLoop(self.member, ScalingScope(named=provision, every=on_machine), asked=bool(provision))
        if provision or on_machine:
            loops.append(scaling.run())
        if self._options.overcommits:
            loops.append(Overcommit(self.member, self._claimer.claim).run())
        loops.append(self._heartbeat.run())
        await run_until_first_ends(*loops)
        if self._options.machine and not self.member.fenced.is_set():
            with self.member.problems.tolerated("look after the machines of pools"):
                await scaling.run_once_more()

    async def _claim(self) -> None:
        """Claim for ever, once the pool's environments are built; jobs of a private cluster use the program's own."""
        if not self._options.overcommits:
            await self._pool_environments.build()
        await self._claimer.run()

    def _may_not_join(self, error: StoreError) -> bool:
        return isinstance(error, StoreRefused) and not self._options.rejoins

    async def _kill_tasks(self) -> None:
        """Kill the tasks that still run; other agents requeue the jobs that this agent could not requeue."""
        tasks = [task for _, task in self.member.leases.running()]
        for task in tasks:
            task.kill()
        for work in self._background:
            work.cancel()
        ending = [*self._background, *(asyncio.ensure_future(task.wait()) for task in tasks)]
        left = (await asyncio.wait(ending, timeout=KILL_TIMEOUT))[1] if ending else set()
        if left:  # their runners still hold the lock, so no other agent regards their resources as free
            log.error("%s ends, and %d of its tasks cannot be killed; their runners wait for them", self.id, len(left))
        else:
            await directories.remove_tree(self._work_dir)
            self._lock.release()

    async def _take_over(self, lease: HeldLease) -> None:
        log.info("%s: attempt %d is claimed", lease.entry.job, lease.attempt)
        if self.member.leaving:
            lease.ask_to_stop(0.0, ExitKind.PREEMPTED)
        try:
            self._spawn(self._run_attempts(lease))
        except Exception as error:  # no coroutine would end the attempt
            self._fatal_errors.put_nowait(error)

    async def _run_attempts(self, lease: HeldLease) -> None:
        try:
            await self._attempt_runner.run(lease)
        except BaseException as error:  # the job has not ended: it stays listed until its agent has ended
            self._fatal_errors.put_nowait(error)
            return
        if lease.abandoned:
            self.member.leases.changed.set()
            return
        self.member.leases.remove(lease)
        self._room_became_free()

    def _room_became_free(self) -> None:
        self._claimer.wake.set()
        self._placements.poll_soon()

    async def _raise_fatal_error(self) -> None:
        raise await self._fatal_errors.get()

    async def _renew_deadlines(self) -> None:
        """Renew often enough that no task of a busy agent ends: deadlines are at least one beat interval ahead."""
        trusted = True
        while True:
            if trusted != (trusted := self.member.trusts()):
                log.warning("relies on its leases %s", "again" if trusted else "no longer: no heartbeat was written")
            running = list(self.member.leases.running())
            for job, task in running:
                task.set_deadline(self.member.task_deadline(job))
            self.member.note_disk_problem(lack_of_room(self._work_dir))
            self.member.problems.unkilled = "; ".join(
                f"SIGKILL does not end processes {task.unkilled} of {job.id}" for job, task in running if task.unkilled
            )
            problems = self.member.problems.now()  # logs a new one at once, even if no heartbeat can be written
            if problems.keys() - self.member.problems.told:
                self.member.request_beat(self._core.settings.beat_interval)
            await self._core.clock.sleep(self.member.renewal_pause)

    def _on_listed(self, holdings: dict[str, Holding]) -> None:
        """Delete the index entries of the jobs that an applied beat lists, and report votes to the pass."""
        self._placements.on_listed(holdings)
        for job in holdings:
            lease = self.member.leases.held.get(job)
            if (
                lease is not None
                and lease.job is not None
                and lease.phase == HoldingPhase.RUNNING
                and not lease.entry_deleted
            ):
                lease.entry_deleted = True
                self._spawn(self._delete_entry(lease))
        if self.member.draining and not self.member.leaving:
            log.info("drained: it takes no more work, and leaves once its jobs have ended")
            self.member.leaving = True

    async def _delete_entry(self, lease: HeldLease) -> None:
        try:
            await pending_index.delete_entry(self._core, lease.entry)
        except StoreError:
            lease.entry_deleted = False  # the next applied beat tries again; until then no agent can claim by the entry

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = start_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
