"""Archives and removes what has ended: jobs with all their objects, and endpoints that outlived their jobs.

`protocol.retention` decides when a job may move or go, and `protocol.naming` which endpoints have outlived their job.
Every repair checks the endpoints, because a late write may bring one back.

Archiving and removal are background work beside the repair, so neither the number of jobs that have ended nor that of
archived ones delays a repair.
"""

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field

from fray_coordinator.concurrency import map_concurrently, map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.jobs import job_archive
from fray_coordinator.protocol.naming import is_stale
from fray_coordinator.protocol.retention import (
    is_archived_record_due,
    is_removable,
    mark_expiring,
    retention_seconds,
    unneeded_blobs,
)
from fray_coordinator.reconcile.record_cache import RecordCache
from fray_coordinator.store.interface import Listed
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.object_keys import BlobKeys, EndpointKey, JobKeys
from fray_layouts.records import EndpointRecord, JobRecord
from fray_layouts.work_keys import WorkKeys


async def remove_job(core: Core, job: Stored[JobRecord]) -> None:
    """Mark the record expiring, delete the job's data, then delete the record on condition of the marked version.

    The caller has checked that the job has no children. While the inbox still holds the job's file, nothing is removed.
    """
    origin = job.record.inbox
    present = await core.store.get(origin.current_key) if origin is not None else None
    in_inbox = present.version if present is not None else None
    if not is_removable(job.record, core.now(), core.settings, in_inbox):
        return
    update = await core.records.change(job.key, JobRecord, mark_expiring, job)
    if update.stored is None:
        return
    data = await core.store.list(WorkKeys.prefix(job.record.id))
    await map_concurrently(data, lambda row: core.store.delete(row.key))
    await core.store.delete(job.key, update.stored.version)


async def remove_blobs(core: Core, used: Set[str], since: str, problems: dict[str, str]) -> None:
    """Delete the blobs of the months before `since` that are not in `used`."""
    blobs = [row.key for row in await core.store.list(BlobKeys.area)]
    await map_noting_problems(unneeded_blobs(blobs, used, since), core.store.delete, problems)


@dataclass(slots=True)
class StaleEndpoints:
    """Removes endpoints that outlived their jobs. Reads only endpoints that changed, and the jobs of doubtful ones."""

    core: Core
    _endpoints: RecordCache[EndpointRecord] = field(init=False)

    def __post_init__(self) -> None:
        self._endpoints = RecordCache(self.core, EndpointKey.area, EndpointRecord, EndpointKey.parse)

    async def remove(self, running: Callable[[str], int | None], problems: dict[str, str]) -> None:
        """List all endpoints, and remove those whose job does not run at the endpoint's attempt.

        Args:
            running: returns the attempt at which a job was just seen to run; None: it was not, so its record is read.
            problems: receives the endpoints that cannot be judged.
        """
        await self._endpoints.refresh(problems)
        doubtful = [e for e in self._endpoints.known.values() if running(e.record.job) != e.record.attempt]
        await map_noting_problems(doubtful, self._remove_if_outlived, problems, lambda endpoint: endpoint.key)

    async def _remove_if_outlived(self, endpoint: Stored[EndpointRecord]) -> None:
        record = endpoint.record
        job = record_of(await self.core.records.read(JobKeys.key(record.job), JobRecord)) if record.job else None
        if is_stale(record, job):
            await self.core.store.delete(endpoint.key, endpoint.version)


SWEEP_INTERVAL = 3600.0
"""Seconds between two sweeps of the archive. Each lists the days from which something may have to be removed, and the
jobs with ids of their own."""


@dataclass(slots=True)
class ArchiveKeeper:
    """Keeps the archive.

    Attributes:
        problems: by key, the errors of the last run.
    """

    core: Core
    problems: dict[str, str] = field(default_factory=dict)
    _ready: list[str] = field(default_factory=list)
    _sweep_due: float = field(init=False)

    def __post_init__(self) -> None:
        self._sweep_due = self.core.clock.boottime()

    def take(self, jobs: Iterable[str]) -> None:
        """Remember the ids of the jobs that the repair has just found ready to move."""
        self._ready = list(jobs)

    async def run(self) -> None:
        """Move what is ready; from time to time remove what retention no longer keeps."""
        ready, self._ready = self._ready, []
        problems: dict[str, str] = {}
        await map_noting_problems(ready, lambda job: job_archive.archive(self.core, job), problems, JobKeys.key)
        if self.core.clock.boottime() >= self._sweep_due:
            await self._sweep(problems)
            self._sweep_due = self.core.clock.boottime() + SWEEP_INTERVAL
        self.problems = problems

    async def _sweep(self, problems: dict[str, str]) -> None:
        now, settings = self.core.now(), self.core.settings
        last_day = now - retention_seconds(settings)
        async for page in job_archive.archived_rows(self.core, submitted_until=last_day, versions=True):
            due = [row for row in page if is_archived_record_due(row.updated or now, now, settings)]
            await map_noting_problems(due, self._remove, problems, lambda row: row.key)

    async def _remove(self, row: Listed) -> None:
        job = await self.core.records.read(row.key, JobRecord, one_of_many=True)
        if job is None or await self.core.store.get(JobKeys.key(job.record.id), one_of_many=True) is not None:
            return  # of two records the one under `jobs/` counts, so the job's data are still needed
        await remove_job(self.core, job)
