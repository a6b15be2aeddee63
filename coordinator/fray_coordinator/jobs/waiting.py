"""Waits for jobs to end by cheap polling.

A poll of few jobs is one conditional read for each; a poll of many is one LIST with versions, whatever their number.
After two seconds a waiter gets the progress of the jobs, and the reasons of those that have not started.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fray_coordinator.backoff import WARN_AFTER
from fray_coordinator.concurrency import MAX_CONCURRENT_FOR_PEOPLE, map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.errors import JobGone, JobNotFound
from fray_coordinator.jobs.archive import find_record, reread_record
from fray_coordinator.jobs.lookup import job_not_found
from fray_coordinator.jobs.poll_backoff import PollBackoff
from fray_coordinator.jobs.waiting_reasons import WaitingReasons
from fray_coordinator.protocol.transitions import Status, is_terminal, is_waiting
from fray_coordinator.store.interface import ROWS_PER_REQUEST
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import JobIds, JobKeys
from fray_layouts.records import JobRecord
from fray_layouts.wording import first_names

READS_PER_LIST = 12
"""Reads that cost as much as one page of a listing, on GCS and on S3."""


@dataclass(slots=True)
class WatchedJobs:
    """Jobs that are polled, with their records as last read."""

    core: Core
    ids: list[str]
    known: dict[str, Stored[JobRecord]] = field(default_factory=dict)
    _pages: int = 1

    def unfinished(self) -> list[str]:
        return [job for job in self.ids if job not in self.known or not is_terminal(self.known[job].record)]

    async def poll(self) -> list[JobRecord]:
        """Poll once; returns the records that changed."""
        ids = self.unfinished()
        if len(self.known) == len(self.ids) and len(ids) > READS_PER_LIST * self._pages:
            ids = await self._changed_by_listing(ids)
        found = await map_concurrently(ids, self._read, MAX_CONCURRENT_FOR_PEOPLE)
        return [stored.record for stored in found if stored is not None]

    async def _changed_by_listing(self, ids: list[str]) -> list[str]:
        prefix = os.path.commonprefix([JobKeys.key(job) for job in ids])  # noqa: RUF071 - characters are what is meant
        rows = await self.core.store.list(prefix, versions=True)
        self._pages = 1 + len(rows) // ROWS_PER_REQUEST
        versions = {row.key: row.version for row in rows}
        return [job for job in ids if versions.get(JobKeys.key(job)) != self.known[job].version]

    async def _read(self, job: str) -> Stored[JobRecord] | None:
        """The record if it has changed."""
        before = self.known.get(job)
        if before is None:
            now = await find_record(self.core, JobIds.checked(job))
        else:
            now = await reread_record(self.core, before)
        if now is None:
            raise await _missing_job(self.core, job, before is not None)
        self.known[job] = now
        return None if now is before else now


async def wait_for(
    core: Core,
    job_ids: Iterable[str],
    timeout: float | None = None,
    any_failure: bool = False,
    on_change: Callable[[JobRecord], None] | None = None,
    on_progress: Callable[[WaitProgress], None] | None = None,
    on_machines: Callable[[], None] = lambda: None,
) -> dict[str, JobRecord]:
    """Wait until all jobs have ended.

    Args:
        timeout: seconds; None waits for ever.
        any_failure: return as soon as one has failed or was stopped.
        on_change: called with each record when it is first seen and whenever it has changed.
        on_progress: after two seconds called with the progress at every poll; None: no reasons are gathered.
        on_machines: called if jobs wait in pools that may have machines; only if there is an `on_progress`.

    Returns:
        The records by id, in the given order; with `any_failure` some may not have ended.

    Raises:
        TimeoutError: some have not ended in time; the message has their progress, and why they wait.
        JobNotFound: there is no such job.
        JobGone: a record was removed while it was waited for.
    """
    watched, pace = WatchedJobs(core, list(dict.fromkeys(job_ids))), PollBackoff(core)
    reasons = WaitingReasons(core, on_machines)
    started = core.clock.boottime()
    while True:
        polled_at = core.clock.boottime()
        changed = await watched.poll()
        for job in changed:
            if on_change is not None:
                on_change(job)
        records = {job: watched.known[job].record for job in watched.ids}
        left = watched.unfinished()
        if not left or (any_failure and any(_failed(job) for job in records.values())):
            return records
        if changed:
            pace.reset()
        if on_progress is not None:
            await reasons.update(records[job] for job in left)
        now = core.clock.boottime()
        remaining = None if timeout is None else started + timeout - now
        if remaining is not None and remaining <= 0:
            progress = WaitProgress.of(records.values(), reasons.text)
            late = f"{progress.text} after {timeout:g} s ({first_names(left, 3)})"
            raise TimeoutError(f"{late}: {progress.why}" if progress.why else late)
        if on_progress is not None and now - started >= WARN_AFTER:
            on_progress(WaitProgress.of(records.values(), reasons.text))
        await pace.sleep(now - polled_at, remaining)


@dataclass(frozen=True, slots=True)
class WaitProgress:
    """The progress of jobs that somebody waits for.

    Attributes:
        ended: "1 of 4 jobs done".
        others: "1 running, 2 waiting", and how many of those that have ended failed.
        why: the reasons why some wait; "" if none is known.
    """

    ended: str
    others: str
    why: str

    @property
    def text(self) -> str:
        """The progress in a few words."""
        return ", ".join(filter(None, [self.ended, self.others]))

    @classmethod
    def of(cls, jobs: Iterable[JobRecord], why: str) -> WaitProgress:
        """Compute the progress from the records. why: the reasons of the jobs that have not started."""
        jobs = list(jobs)
        ended, failed = sum(map(is_terminal, jobs)), sum(map(_failed, jobs))
        waiting = sum(map(is_waiting, jobs))
        counts = {"failed": failed, "running": len(jobs) - ended - waiting, "waiting": waiting}
        others = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        return cls(f"{ended} of {len(jobs)} jobs done", others, why)


def _failed(job: JobRecord) -> bool:
    return is_terminal(job) and job.status != Status.SUCCEEDED


async def _missing_job(core: Core, job: str, was_there: bool) -> JobGone | JobNotFound:
    if was_there:
        await core.store.confirm_root()
        return JobGone(f"the record of {job} was removed while it was waited for; its outcome is no longer known")
    return await job_not_found(core, job)
