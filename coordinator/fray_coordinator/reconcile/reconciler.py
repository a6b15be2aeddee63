"""The reconciler: brings the cluster's records into agreement with reality, as no single job's holder could.

One run is a pass. It watches the agents, reaps the dead, admits the inbox, and sometimes repairs; between passes it
gathers the members of gangs. The agent with the lease in `coordinator/reconciler.json` runs it; `fray coordinate
--once` runs it without the lease. Two at once do no harm, because every write is conditional. A pass itself only
watches the agents; everything else may take long and continues in the background while later passes run.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreError, StoreUnavailable, describe_error, is_outage
from fray_coordinator.jobs import notifications
from fray_coordinator.placements.scheduler import PlacementScheduler
from fray_coordinator.protocol import role_lease
from fray_coordinator.protocol.failure_detection import MAX_GAP_INTERVALS, merge_suspects
from fray_coordinator.protocol.heartbeat import paced_interval, with_bounded_interval
from fray_coordinator.reconcile import reaper
from fray_coordinator.reconcile.admission import Admission
from fray_coordinator.reconcile.background_work import BackgroundWork
from fray_coordinator.reconcile.failure_detector import UNREAD_AGENTS, FailureDetector
from fray_coordinator.reconcile.repair import Repair
from fray_coordinator.role_election import RoleElection
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import AgentKeys, ArchiveKeys, CoordinatorKeys, JobKeys
from fray_layouts.records import AgentRecord, HintEndpoint, ReconcilerRecord, Suspect
from fray_layouts.work_keys import InboxKeys

MAX_LISTED_PER_SECOND = 2000.0
"""Average number of job keys that the repairs list per second: a listing of a million jobs is a thousand paid
requests."""

MAX_CONCURRENT_REAPS = 64
"""Dead agents that are reaped at a time, those with few jobs first; more would slow down the watching of the others."""


@dataclass(slots=True)
class Reconciler:
    """Runs passes while it holds the lease.

    Attributes:
        identity: agent id, or "once-..." for a run without an agent.
        own_beat: returns the agent's current beat, which the lease notes for a successor.
        hint_endpoint: where this process takes hints; the lease notes it for submitters of gangs.
        send_hints: sends hints to these endpoints, so that the agents there read their placements.
        placements: gathers the members of gangs; the agent that runs the passes runs its steps between them, see
            `schedule_placements`.
    """

    core: Core
    identity: str
    own_beat: Callable[[], int] = lambda: 0
    hint_endpoint: HintEndpoint | None = None
    send_hints: Callable[[Collection[HintEndpoint]], None] = lambda endpoints: None
    detector: FailureDetector = field(init=False)
    admission: Admission = field(init=False)
    repair: Repair = field(init=False)
    placements: PlacementScheduler = field(init=False)
    _role: RoleElection[ReconcilerRecord] = field(init=False)
    _background: BackgroundWork = field(default_factory=BackgroundWork)
    _failed: dict[str, str] = field(default_factory=dict)
    _repaired_at: float = 0.0
    _quiet_until: float = 0.0
    _wants_repair: bool = False
    _has_observed: bool = False
    _judged: tuple[str, bool] = ("", False)

    def __post_init__(self) -> None:
        self._role = RoleElection(
            self.core,
            CoordinatorKeys.reconciler,
            ReconcilerRecord,
            self.identity,
            lambda lease: role_lease.promised_interval(lease, self.core.settings),
        )
        self.detector = FailureDetector(self.core, self._background)
        self.admission = Admission(self.core)
        self.repair = Repair(self.core, self.admission)
        self.placements = PlacementScheduler(self.core, self.detector.watched, self.detector.silent, self.send_hints)

    @property
    def lease(self) -> Stored[ReconcilerRecord] | None:
        """The lease as last read or written."""
        return self._role.lease

    @property
    def holds_lease(self) -> bool:
        return self._role.is_won

    @property
    def problems(self) -> dict[str, str]:
        """By key of the object or folder, the errors of the last pass."""
        works = (self.detector, self.admission, self.repair, self.repair.archive, self.placements, self._background)
        return self._failed | {key: problem for work in works for key, problem in work.problems.items()}

    @property
    def pass_due_in(self) -> float:
        """Seconds from one look at the lease, or from the start of one pass, to the next."""
        return role_lease.promised_interval(self._role.record, self.core.settings)

    @property
    def is_quiet(self) -> bool:
        """Whether the last pass, whoever ran it, left nothing to do: passes and repairs are rarer then."""
        return self.pass_due_in > self.core.settings.pass_interval

    def pool_slots(self, pool: str) -> int:
        """Free slots of a pool, from the last pass; a hint."""
        view = self._role.record.pools.get(pool)
        return view.slots if view else 1

    def fleet(self) -> int:
        """Number of live agents in all pools, from the last pass, but at least 1; a hint."""
        return max(sum(view.agents for view in self._role.record.pools.values()), 1)

    async def run(self) -> None:
        """Run passes and schedule placements whenever they may be due, until this is cancelled; then resign."""
        core = self.core
        try:
            while True:
                await self.try_pass()
                until = core.clock.boottime() + core.jittered(core.settings.pass_interval)
                while core.clock.boottime() < until:
                    await self.schedule_placements()
                    await core.clock.sleep(core.settings.poll_interval)
        finally:
            await self.resign()

    async def try_pass(self) -> bool:
        """Read the lease, take it if it is free or stale, and run a pass if it is held; returns whether a pass ran."""
        try:
            await self._role.read()
            if (self.holds_lease or await self._take()) and await self._run():
                self.detector.confirm()
                return True
        except StoreError:
            self.detector.discount()
            raise
        self.stop()
        self._has_observed = False
        return False

    async def schedule_placements(self, woken: bool = False) -> bool:
        """Advance gangs and reservations, if this process ran the last pass and has seen all agents.

        woken: as in `PlacementScheduler.step`, whose result this returns.
        """
        if self.holds_lease and self._has_observed and self.detector.complete:
            return await self.placements.step(woken)
        return False

    def placements_due_in(self) -> float:
        """Seconds until the next scheduling that no hint announces."""
        return self.placements.due_in()

    def stop(self) -> None:
        """Cancel the background work; the next holder of the lease starts it again."""
        self._background.stop()

    async def run_once(self) -> None:
        """Run a pass without the lease: read agents twice to measure silence, and store the suspects for later runs."""
        await self._role.read()
        suspects = await self._observe_agents(dict(self._role.record.suspects))
        await self._run_background()
        if self.detector.watched() or self.admission.waiting:
            await self._write_suspects(suspects)  # without a write, silence could be an outage of writes
            self.detector.discount()
            suspects = await self._observe_agents(suspects)
            settings = self.core.settings  # time between the reads counts only if it is no longer than this gap
            wait = max(MAX_GAP_INTERVALS * settings.beat_interval * 0.9, settings.inbox_patience)
            await self.core.clock.sleep(wait)
            suspects = await self._observe_agents(suspects)
        self._background.start(JobKeys.area, self._repair)
        await self._run_background()
        if self.detector.complete:
            await self.placements.step()
        await self._write_suspects(suspects)

    async def _write_suspects(self, suspects: dict[str, Suspect]) -> None:
        """Write the suspects into the lease's record. An unreadable record is left to an agent, which replaces it."""
        if self._role.record.holder == role_lease.UNREADABLE_HOLDER:
            return
        alive = set(self.detector.watched())
        await self._role.update(
            lambda now: role_lease.after_run_without_lease(now or ReconcilerRecord(), suspects, alive)
        )

    async def end_quiet(self) -> None:
        """Make passes frequent again, because this process's agent is about to claim a job, and may die.

        The holder promises frequent renewals. Any other process rings for the holder, whatever it knew of the lease.
        Raises BadRecord, StoreError.
        """
        if self.core.store.local:
            return
        if not self.holds_lease:
            lease = record_of(await self.core.records.read(CoordinatorKeys.reconciler, ReconcilerRecord))
            if lease is not None and role_lease.is_quiet(lease, self.core.settings):
                await notifications.ring_placements_bell(self.core)
        elif self.is_quiet:
            await self._role.renew(lambda now: replace(self._renewed(now), interval=0.0))

    async def resign(self) -> None:
        """Give the lease up, so that a successor need not wait until it ages."""
        await self._role.resign()

    async def _take(self) -> bool:
        if not self._role.may_take() and not await self._is_outdated():
            return False
        found = self._role.record
        suspects = role_lease.inherited_suspects(found, self._role.age, await self._old_holder(found.holder))
        wanted = replace(
            found,
            holder=self.identity,
            suspects=suspects,
            holder_beat=self.own_beat(),
            hint_endpoint=self.hint_endpoint,
        )
        self._wants_repair |= (taken := await self._role.take(wanted))
        return taken

    async def _is_outdated(self) -> bool:
        """Whether the holder is an agent of a version without gangs; each holder's record is read once for this."""
        holder = self._role.record.holder
        if self._judged[0] != holder:
            agent = await self._old_holder(holder)
            self._judged = holder, agent is not None and role_lease.is_outdated(agent)
        return self._judged[1]

    async def _old_holder(self, name: str) -> AgentRecord | None:
        """The lease holder's record; None if it is absent or unreadable, so that its silence is unknown."""
        if not name:
            return None
        try:
            found = record_of(await self.core.records.read(AgentKeys.key(name), AgentRecord, one_of_many=True))
        except (BadRecord, StoreUnavailable) as error:
            if is_outage(error):
                raise
            return None
        return with_bounded_interval(found, self.core.settings) if found is not None else None

    async def _run(self) -> bool:
        """Run a pass under the lease and renew it; returns whether this process still holds it."""
        last = self._role.record
        if await self._role.renew_during(self._observe_agents(last.suspects), self._renewed) is None:
            return False
        self._has_observed = True
        if role_lease.is_quiet(last, self.core.settings):
            self._quiet_until = self.core.now()
        self._wants_repair |= self.detector.someone_died
        self.detector.someone_died = False
        if last.repaired_at <= self.core.now():
            self._repaired_at = max(self._repaired_at, last.repaired_at)
        if self.detector.complete and self._repair_is_due():
            self._background.start(JobKeys.area, self._repair)
        await self._run_background(self.core.settings.poll_interval)
        return await self._role.renew(self._with_findings)

    async def _observe_agents(self, suspects: dict[str, Suspect]) -> dict[str, Suspect]:
        """Watch the agents; an unexpected error ends only this."""
        self._failed = {}
        try:
            return await self.detector.observe_agents(suspects)
        except StoreError:  # another process, which then takes the lease, may get answers
            raise
        except Exception as error:
            self._failed[AgentKeys.area] = describe_error(error)
            return suspects

    async def _run_background(self, seconds: float | None = None) -> None:
        """Start or continue the background work, and wait for it up to `seconds`."""
        unreaped = self.detector.unreaped()
        self._background.forget_all_but(
            [
                JobKeys.area,
                ArchiveKeys.area,
                AgentKeys.area,
                UNREAD_AGENTS,
                InboxKeys.area,
                *([PendingKey.area] if self.is_quiet else []),
                *(dead.key for dead in unreaped),
            ]
        )
        for dead in unreaped[:MAX_CONCURRENT_REAPS]:
            self._background.start(dead.key, partial(reaper.reap, self.core, dead))
        self._background.start(AgentKeys.area, self.detector.forget_old)
        self._background.start(ArchiveKeys.area, self.repair.archive.run)
        self._background.start(InboxKeys.area, self.admission.run)
        if self.is_quiet:
            self._background.start(PendingKey.area, self.repair.look_at_index)
        await self._background.wait(seconds)

    def _repair_is_due(self) -> bool:
        """Whether a repair is due. A death makes it due at once: claims after the last heartbeat are in no holdings.

        So does taking the role: the last holder may have seen a death and not have reached the repair. In a quiet
        cluster repairs are rarer; when the quiet has ended, the next one is due an interval later.
        """
        interval, last = self.core.settings.repair_interval, self._repaired_at
        if self._wants_repair:
            interval = 0.0
        elif self.is_quiet:
            interval *= role_lease.QUIET_INTERVALS
        else:
            last = max(last, self._quiet_until)
        return self.core.now() - last >= paced_interval(interval, self.repair.size, MAX_LISTED_PER_SECOND)

    def _nothing_to_do(self) -> bool:
        """Whether this pass leaves nothing to do. Where requests cost nothing, every pass and repair is made."""
        done = self.detector.complete and not (self.detector.unreaped() or self.detector.silent() or self.problems)
        waits = self.admission.waiting or self._wants_repair or self.placements.has_owners or self._background.is_busy
        return done and not waits and self.repair.found_nothing_open and not self.core.store.local

    async def _repair(self) -> None:
        started, wanted, self._wants_repair = self.core.now(), self._wants_repair, False
        try:
            await self.repair.run(self.detector.watched())
        except BaseException:
            self._wants_repair |= wanted
            raise
        self._repaired_at = started

    def _renewed(self, now: ReconcilerRecord) -> ReconcilerRecord:
        return role_lease.renewed(now, self.identity, self.own_beat())

    def _with_findings(self, now: ReconcilerRecord) -> ReconcilerRecord:
        """The renewed lease, with the findings of this pass."""
        beat, suspects, pools = self.own_beat(), self.detector.silent(), self.detector.pools()
        if not self.detector.complete:  # for unread agents, keep what the last holder found
            suspects, pools = merge_suspects(suspects, now.suspects), now.pools
        agents = [agent.record for agent in self.detector.watched().values()]
        interval = role_lease.next_pass_in(agents, self._nothing_to_do(), self.core.settings)
        return role_lease.after_pass(
            now, self.identity, beat, suspects, pools, self.problems, self._repaired_at, interval
        )
