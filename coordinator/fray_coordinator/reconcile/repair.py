"""The periodic full repair: lists everything and mends what hints and indexes missed.

The repair, not the submitter, guarantees that no job is lost: `jobs/` is the source of truth, and `pending/` and
`children/` are derived from it. `JobTable` reads the records; this module acts on each job, entry and child.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from fray_coordinator import worker_pools
from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.jobs import notifications, pending_index, pools, stopping
from fray_coordinator.protocol.claiming import WAITING_TO_START, expired
from fray_coordinator.protocol.failure_detection import is_unlisted
from fray_coordinator.protocol.heartbeat import with_bounded_interval
from fray_coordinator.protocol.retention import may_archive, oldest_kept_month
from fray_coordinator.protocol.stopping import ChildVerdict
from fray_coordinator.protocol.transitions import Status
from fray_coordinator.reconcile import removal
from fray_coordinator.reconcile.admission import Admission
from fray_coordinator.reconcile.job_table import JobTable, OpenJob
from fray_coordinator.reconcile.placement_repair import GangRepair, JobInside, ReservationRepair, repair_entries
from fray_coordinator.reconcile.reaper import MissedJobs, UnreadableHolders
from fray_coordinator.reconcile.removal import ArchiveKeeper, StaleEndpoints
from fray_coordinator.store.interface import ROWS_PER_REQUEST
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.index_keys import ChildKey, PendingKey, PlacementKey
from fray_layouts.object_keys import AgentKeys, BlobKeys, EndpointKey, JobKeys, ReservationKeys
from fray_layouts.queue_keys import TaskKeys
from fray_layouts.records import AgentRecord, JobRecord

T = TypeVar("T")
POOL_SWEEP_INTERVAL = 3600.0
"""Seconds between two sweeps of unused worker pools, which are kept for weeks."""


@dataclass(slots=True)
class Repair:
    """Runs repairs, and remembers between them what it has read.

    Attributes:
        archive: moves the jobs that a repair finds to have ended long ago; its `run` is no part of the repair.
        found_nothing_open: the last repair saw no job that has not ended, and no entry has been seen since.
    """

    core: Core
    admission: Admission
    found_nothing_open: bool = False
    _problems: dict[str, str] = field(default_factory=dict)
    _problems_before: dict[str, str] = field(default_factory=dict)
    _endpoints: StaleEndpoints = field(init=False)
    _reservations: ReservationRepair = field(init=False)
    _jobs: JobTable = field(init=False)
    archive: ArchiveKeeper = field(init=False)
    _holders: UnreadableHolders = field(init=False)
    _gangs: GangRepair = field(init=False)
    _missed: MissedJobs = field(default_factory=MissedJobs)
    _blobs_swept_until: str = ""
    _pools_due: float = field(init=False)

    def __post_init__(self) -> None:
        self._jobs = JobTable(self.core)
        self.archive = ArchiveKeeper(self.core)
        self._endpoints = StaleEndpoints(self.core)
        self._reservations = ReservationRepair(self.core)
        self._holders = UnreadableHolders(self.core)
        self._gangs = GangRepair(self.core, self._holders, self._missed)
        self._pools_due = self.core.clock.boottime() + POOL_SWEEP_INTERVAL

    @property
    def problems(self) -> dict[str, str]:
        """By key, the errors of the last finished run and of the present one."""
        return self._problems_before | self._problems

    @property
    def size(self) -> int:
        """The number of jobs under `jobs/`, as of the last repair."""
        return self._jobs.size

    async def run(self, live: Mapping[str, Stored[AgentRecord]]) -> None:
        """Run a repair. `live`: by id, the agents that have not ended, from a moment ago."""
        self._problems = {}
        await self._jobs.refresh(self._problems)
        steps = {
            PendingKey.area: lambda: self._repair_index(live),
            PlacementKey.area: self._repair_placements,
            ReservationKeys.area: self._repair_reservations,
            ChildKey.area: self._stop_orphans,
            EndpointKey.area: lambda: self._endpoints.remove(self._jobs.attempt_running, self._problems),
            BlobKeys.area: self._sweep_blobs,
            TaskKeys.area: self._sweep_pools,
        }
        await map_noting_problems(steps, lambda area: steps[area](), self._problems, at_once=1)
        self._problems_before = self._problems
        self.found_nothing_open = not self._jobs.open

    async def look_at_index(self) -> None:
        """Between the rare repairs of a quiet cluster, ring for jobs that wait: their own rings may have been lost."""
        rows = await self.core.store.list(PendingKey.area, None, ROWS_PER_REQUEST)
        entries = [entry for entry in (PendingKey.parse(row.key) for row in rows) if entry is not None]
        self.found_nothing_open &= not entries
        for pool in sorted({entry.pool for entry in entries}):
            await notifications.ring(self.core, pool)

    async def _repair_index(self, live: Mapping[str, Stored[AgentRecord]]) -> None:
        entries = {row.key for row in await self.core.store.list(PendingKey.area)}
        self._missed.start_run()
        self._holders.start_run()
        await self._each(self._jobs.open, lambda job: self._repair_job(job, live, entries), JobKeys.key)
        await self._each(sorted(e for e in entries if not self._agrees(e)), self._reconcile_entry)

    async def _repair_placements(self) -> None:
        gangs = {
            job.entry_key(job_id): JobKeys.key(job_id)
            for job_id, job in self._jobs.open.items()
            if isinstance(job.shared.entry, PlacementKey)
        }
        await repair_entries(self.core, gangs, self._problems)

    async def _repair_reservations(self) -> None:
        inside = [
            JobInside(job_id, job.shared.reservation, job.submitted_at)
            for job_id, job in self._jobs.open.items()
            if job.shared.reservation
        ]
        await self._reservations.run(inside, self._problems)

    async def _stop_orphans(self) -> None:
        """Stop the children whose parents have ended, and let the archive take the jobs that ended long ago."""
        children = [c for c in (ChildKey.parse(row.key) for row in await self.core.store.list(ChildKey.area)) if c]
        parents = {child.parent for child in children if self._may_need_cascade(child)}
        await self._each(sorted(parents), lambda parent: stopping.stop_children(self.core, parent), ChildKey.prefix)
        with_children = {child.parent for child in children} | self._jobs.parents()
        if not self._jobs.may_lack_children():
            now, ended = self.core.now(), self._jobs.ended.items()
            self.archive.take(j for j, job in ended if may_archive(job.archive_at, now, j in with_children))

    async def _repair_job(self, job_id: str, live: Mapping[str, Stored[AgentRecord]], entries: set[str]) -> None:
        """Judge the job by its summary, and read its record only if something must be done."""
        known, key = self._jobs.open[job_id], JobKeys.key(job_id)
        status, holder = known.shared.status, known.shared.holder
        if status == Status.UNADMITTED:
            await self._with(key, self.admission.settle_record)
        elif status in WAITING_TO_START and self.core.now() > known.waits_until:
            await stopping.stop_if(self.core, key, lambda job: expired(job, self.core.now()))
        elif await self._outlived_its_parent(key, known):
            await self._with(key, lambda job: stopping.stop_orphan(self.core, job))
        elif status == Status.PENDING and known.entry_key(job_id) not in entries:
            await self._enter_if_missing(key, known)
        elif status == Status.RUNNING and holder:
            await self._check_holder(job_id, known, live.get(holder))
        elif status == Status.RUNNING and known.shared.members:
            await self._gangs.check_members(job_id, known, live)

    async def _check_holder(self, job_id: str, known: OpenJob, holder: Stored[AgentRecord] | None) -> None:
        if holder is None:
            await self._with(JobKeys.key(job_id), self._requeue_if_orphaned)
        elif is_unlisted(job_id, known.held_since, holder.record, self.core.now()):
            await self._check_unlisted(job_id, known)

    async def _requeue_if_orphaned(self, job: Stored[JobRecord]) -> None:
        """Requeue the job if its holder is gone; then its children and endpoints are judged by the new record."""
        try:
            now = await pending_index.requeue_if_orphaned(self.core, job)
        except BadRecord:
            if job.record.lease is not None:
                await self._holders.check(job.record.lease.agent)
            raise
        if now is not None:
            self._jobs.update(now)

    async def _check_unlisted(self, job_id: str, known: OpenJob) -> None:
        """Requeue the job once its holder, read after the job, has not listed it for long enough."""
        key = AgentKeys.key(known.shared.holder)
        holder = record_of(await self.core.records.read(key, AgentRecord, one_of_many=True))
        if holder is None:
            return
        holder = with_bounded_interval(holder, self.core.settings)
        if not is_unlisted(job_id, known.held_since, holder, self.core.now()):
            return
        if not self._missed.is_dropped(job_id, known.version, holder):
            return
        job = await self.core.records.read(JobKeys.key(job_id), JobRecord, one_of_many=True)
        if job is not None and job.version == known.version:
            await pending_index.requeue_dropped(self.core, job)

    async def _with(self, key: str, act: Callable[[Stored[JobRecord]], Awaitable[object]]) -> None:
        """Read the job's record, and call `act` if it exists."""
        job = await self.core.records.read(key, JobRecord, one_of_many=True)
        if job is not None:
            await act(job)

    async def _enter_if_missing(self, key: str, known: OpenJob) -> None:
        """Create the missing entry of a pending job. If the job was claimed meanwhile, the entry is rightly gone."""
        job = record_of(await self.core.records.read(key, JobRecord, one_of_many=True))
        if job is not None and job.status == Status.PENDING and job.attempt == known.shared.attempt:
            await pending_index.create_entry(self.core, job)
            await notifications.ring(self.core, job.spec.pool)

    async def _outlived_its_parent(self, key: str, known: OpenJob) -> bool:
        of = known.shared
        if not of.parent or of.stops or self._jobs.attempt_running(of.parent) == of.parent_attempt:
            return False
        child = await self.core.records.read(key, JobRecord, one_of_many=True)
        try:
            return child is not None and await stopping.child_verdict(self.core, child) is ChildVerdict.STOP
        except BadRecord:  # the parent's; it is reported under its own key, and the child may still need other repairs
            return False

    def _may_need_cascade(self, child: ChildKey) -> bool:
        return self._jobs.attempt_running(child.parent) != child.attempt or child.child not in self._jobs.open

    def _agrees(self, key: str) -> bool:
        """Whether the entry is the one that its pending job must have."""
        entry = PendingKey.parse(key)
        job = self._jobs.open.get(entry.job) if entry else None
        return (
            entry is not None
            and job is not None
            and job.shared.status == Status.PENDING
            and job.entry_key(entry.job) == key
        )

    async def _reconcile_entry(self, key: str) -> None:
        entry = PendingKey.parse(key)
        if entry is not None:
            await pending_index.reconcile_entry(self.core, key, entry)

    async def _sweep_blobs(self) -> None:
        """Remove unneeded blobs once a month, but not while some records, which may name any blob, cannot be read."""
        since = oldest_kept_month(self.core.now(), self.core.settings)
        if since == self._blobs_swept_until or self._problems:
            return
        used = await pools.blobs_of_pools(self.core, self._problems)
        if self._problems:
            return
        await removal.remove_blobs(self.core, used | self._jobs.blobs(), since, self._problems)
        self._blobs_swept_until = since

    async def _sweep_pools(self) -> None:
        if self.core.clock.boottime() >= self._pools_due:
            await worker_pools.remove_unused(self.core, self._problems)
            self._pools_due = self.core.clock.boottime() + POOL_SWEEP_INTERVAL

    async def _each(
        self, items: Iterable[T], act: Callable[[T], Awaitable[object]], name: Callable[[T], str] = str
    ) -> None:
        await map_noting_problems(items, act, self._problems, name)
