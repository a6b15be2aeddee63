"""The repair's table of all jobs: a summary of each, which is made again only when the record has changed."""

from dataclasses import dataclass, field, replace
from functools import lru_cache

from msgspec import Struct

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol.claiming import waits_until
from fray_coordinator.protocol.placements.rounds import entry_of_gang
from fray_coordinator.protocol.retention import archive_time
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.protocol.stopping import holders_of
from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_coordinator.reconcile.record_cache import UnreadableRecords
from fray_coordinator.store.interface import Listed
from fray_coordinator.store.records import Stored
from fray_layouts.index_keys import PendingKey, PlacementKey
from fray_layouts.object_keys import JobKeys, ReservationKeys
from fray_layouts.records import ClusterSettings, JobRecord
from fray_layouts.spec import blobs_of, is_gang


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has ended and is not archived yet.

    Attributes:
        archive_at: time on the storage's clock from which its record may be archived.
        parent: id of the parent that is kept under `jobs/` as long as this job; "" if there is none.
        blobs: keys of the blobs that it names.
    """

    version: str
    archive_at: float
    parent: str
    blobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SharedFields:
    """What jobs that have not ended have in common if one user submitted them at one time; it is kept once for all.

    Attributes:
        holder: id of the agent in the lease; "" if none.
        members: ids of the agents that run it, if it is a gang.
        entry: the index entry while it waits, without id and time; a gang's entry stays until the gang has ended.
        stops: somebody has asked it to stop.
        parent: id of the parent that it ends with, whose attempt `parent_attempt` launched it; "" if there is none.
        blobs: keys of the blobs that it needs.
        reservation: id of the reservation in which it waits or runs; "" for none.
    """

    status: str
    attempt: int
    holder: str
    members: tuple[str, ...]
    entry: PendingKey | PlacementKey
    stops: bool
    parent: str
    parent_attempt: int
    blobs: tuple[str, ...]
    reservation: str


class OpenJob(Struct, frozen=True, gc=False):
    """A job that has not ended: a million of them may wait, so it holds only what differs from job to job.

    Attributes:
        held_since: time of the lease, or of the gang's start, on the storage's clock.
        waits_until: time on the storage's clock after which a waiting job is overdue.
        submitted_at: time of its submission on the storage's clock.
    """

    version: str
    held_since: float
    waits_until: float
    submitted_at: float
    shared: SharedFields

    def entry_key(self, job_id: str) -> str:
        """The key of the job's index entry."""
        entry = self.shared.entry
        if isinstance(entry, PlacementKey):
            return replace(entry, owner=job_id, time=self.submitted_at).key()
        return replace(entry, job=job_id, time=self.submitted_at).key()


def summarize(job: Stored[JobRecord], settings: ClusterSettings) -> OpenJob | EndedJob:
    """Make the summary of a job's record."""
    record = job.record
    link, lease, blobs = record.parent, record.lease, tuple(blobs_of(record.spec))
    parent = link.job if link is not None and not link.detached else ""
    if is_terminal(record):
        return EndedJob(job.version, archive_time(record, settings), parent, blobs)
    placement = entry_of_gang(record)
    shared = SharedFields(
        status=record.status,
        attempt=record.attempt,
        holder=lease.agent if lease is not None else "",
        members=tuple(holders_of(record)) if is_gang(record.spec) else (),
        entry=replace(placement, owner="", time=0.0) if placement else replace(entry_of(record), job="", time=0.0),
        stops=record.stop is not None,
        parent=parent,
        parent_attempt=link.attempt if link is not None else 0,
        blobs=blobs,
        reservation=ReservationKeys.of_pool(record.spec.pool),
    )
    return OpenJob(
        version=job.version,
        held_since=lease.since if lease is not None else record.started_at or 0.0,
        waits_until=waits_until(record),
        submitted_at=record.submitted_at,
        shared=_the_one_kept(shared),
    )


@lru_cache(maxsize=10_000)
def _the_one_kept(fields: SharedFields) -> SharedFields:
    """The first of equal fields, so that jobs share one object. Jobs of very many kinds at a time keep some twice."""
    return fields


UNREAD_PATIENCE = 3600.0
"""Seconds for which an unanswered record keeps all ended jobs from removal, because it may be the child of any of them.

After that it counts as unreadable, so that one object cannot make the storage fill up. Jobs are kept for days.
"""


@dataclass(slots=True)
class JobTable:
    """Summaries of all jobs, by id.

    Attributes:
        open: jobs that have not ended.
        ended: jobs that have ended.
    """

    core: Core
    open: dict[str, OpenJob] = field(default_factory=dict)
    ended: dict[str, EndedJob] = field(default_factory=dict)
    _unreadable: UnreadableRecords = field(default_factory=UnreadableRecords)
    _unread_since: dict[str, float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.open) + len(self.ended)

    async def refresh(self, problems: dict[str, str]) -> None:
        """List all records and read those that have changed; those that cannot be read are noted in `problems`."""
        rows = await self.core.store.list(JobKeys.area, versions=True)
        rows = self._unreadable.sift((row for row in rows if JobKeys.parse(row.key)), problems)
        was_open, had_ended = self.open, self.ended
        unread, self._unread_since = self._unread_since, {}
        self.open, self.ended = {}, {}

        async def read(row: Listed) -> None:
            job_id = JobKeys.parse(row.key) or ""
            known = was_open.get(job_id) or had_ended.get(job_id)
            if known is None or known.version != row.version:
                job = await self._read(row, unread.get(row.key))
                known = summarize(job, self.core.settings) if job is not None else None
            if known is not None:
                self._keep(job_id, known)

        await map_noting_problems(rows, read, problems, lambda row: row.key)

    def update(self, job: Stored[JobRecord]) -> None:
        """Store a record as just written."""
        self._keep(job.record.id, summarize(job, self.core.settings))

    def attempt_running(self, job_id: str) -> int | None:
        """The attempt of a running job; None if it does not run or is not known."""
        job = self.open.get(job_id)
        return job.shared.attempt if job is not None and job.shared.status == Status.RUNNING else None

    def parents(self) -> set[str]:
        """The jobs that others name as their parent; a parent is removed after its children."""
        return {job.shared.parent for job in self.open.values()} | {job.parent for job in self.ended.values()}

    def blobs(self) -> set[str]:
        """The keys of the blobs that any job names."""
        needed = {job.shared.blobs for job in self.open.values()} | {job.blobs for job in self.ended.values()}
        return {key for keys in needed for key in keys}

    def may_lack_children(self) -> bool:
        """Whether some record was not answered yet and may name a parent that must be kept for it."""
        now = self.core.clock.boottime()
        return any(now - since < UNREAD_PATIENCE for since in self._unread_since.values())

    async def _read(self, row: Listed, unread_since: float | None) -> Stored[JobRecord] | None:
        try:
            return await self._unreadable.read(self.core.records, row, JobRecord)
        except BadRecord:
            raise
        except Exception:
            now = self.core.clock.boottime()
            self._unread_since[row.key] = now if unread_since is None else unread_since
            raise

    def _keep(self, job_id: str, known: OpenJob | EndedJob) -> None:
        self.open.pop(job_id, None)
        if isinstance(known, OpenJob):
            self.open[job_id] = known
        else:
            self.ended[job_id] = known
