"""The repair's cache of all jobs: each repair reads only the records that have changed."""

from dataclasses import dataclass, field

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol.transitions import Status
from fray_coordinator.reconcile.job_summary import EndedJob, OpenJob, summarize
from fray_coordinator.reconcile.unreadable_records import UnreadableRecords
from fray_coordinator.store.interface import Listed
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import JobRecord

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
