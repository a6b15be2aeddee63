"""Moves the records of jobs that ended long ago to the archive, and removes them from there when retention ends.

Both are background work beside the repair, so neither the number of jobs that have ended nor that of archived ones
delays a repair. `protocol.archiving` decides what may move, `protocol.retention` what may be removed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.jobs import archive
from fray_coordinator.protocol.retention import is_archived_record_due, retention_seconds
from fray_coordinator.reconcile import removal
from fray_coordinator.store.interface import Listed
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import JobRecord

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
        await map_noting_problems(ready, lambda job: archive.archive(self.core, job), problems, JobKeys.key)
        if self.core.clock.boottime() >= self._sweep_due:
            await self._sweep(problems)
            self._sweep_due = self.core.clock.boottime() + SWEEP_INTERVAL
        self.problems = problems

    async def _sweep(self, problems: dict[str, str]) -> None:
        now, settings = self.core.now(), self.core.settings
        last_day = now - retention_seconds(settings)
        async for page in archive.archived_rows(self.core, submitted_until=last_day, versions=True):
            due = [row for row in page if is_archived_record_due(row.updated or now, now, settings)]
            await map_noting_problems(due, self._remove, problems, lambda row: row.key)

    async def _remove(self, row: Listed) -> None:
        job = await self.core.records.read(row.key, JobRecord, one_of_many=True)
        if job is None or await self.core.store.get(JobKeys.key(job.record.id), one_of_many=True) is not None:
            return  # of two records the one under `jobs/` counts, so the job's data are still needed
        await removal.remove_job(self.core, job)
