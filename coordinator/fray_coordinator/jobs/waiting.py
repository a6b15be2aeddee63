"""Waits for jobs to end by cheap polling, and tells the waiter meanwhile why they do not go on.

A poll of few jobs is one conditional read for each; a poll of many is one LIST with versions, whatever their number.
The pauses between polls are short after a change, and grow while nothing happens. After two seconds a waiter gets the
progress of the jobs, and the reasons of those that have not started.
"""

from __future__ import annotations

import os.path
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from fray_coordinator.backoff import WARN_AFTER, backoff
from fray_coordinator.concurrency import MAX_CONCURRENT_FOR_PEOPLE, map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, JobGone, JobNotFound, StoreError
from fray_coordinator.jobs.job_archive import find_record, reread_record
from fray_coordinator.jobs.lookup import job_not_found, live_agents, refreshed_agents
from fray_coordinator.jobs.why_machines import machines_for
from fray_coordinator.jobs.why_waiting import reasons_by_job, reservations_around, with_claims
from fray_coordinator.protocol.claiming import WAITING_TO_START
from fray_coordinator.protocol.stopping import holders_of
from fray_coordinator.protocol.transitions import Status, is_terminal, is_waiting
from fray_coordinator.store.interface import ROWS_PER_REQUEST
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import AgentKeys, JobIds, JobKeys
from fray_layouts.records import AgentRecord, Holding, JobRecord, ReservationRecord
from fray_layouts.spec import needs_environment
from fray_layouts.units import first_names

_GROWTH = 1.5
"""Ratio of each pause to the one before. All pauses before one add up to twice that pause, so a poll notices an event
at most half as late again as the event took to happen."""
_MAX_PAUSE_INTERVALS = 10
"""Longest pause on a bucket, in poll intervals; there every poll costs money."""
_EAGER_SHARE = 0.25
"""First pause, as a share of the poll interval, after something was begun that may be done at once."""
_MIN_LOCAL_PAUSE = 0.005
"""Shortest pause in seconds where requests cost nothing, so that the end of a short job is noticed. A poll takes 0.1
ms."""
_LOCAL_PAUSE_RATIO = 4
"""Seconds of pause for each second that a local poll took, so that polling takes at most a fifth of the time."""


@dataclass(slots=True)
class PollBackoff:
    """The pauses of one poller."""

    core: Core
    _pauses: Iterator[float] | None = None

    def reset(self) -> None:
        """Something happened: poll soon again."""
        self._pauses = None

    def expect_soon(self) -> None:
        """Something was begun that may end at once: poll sooner than after a change, and then more and more rarely."""
        interval = self.core.settings.poll_interval
        self._pauses = None if self.core.store.local else self._backoff(interval * _EAGER_SHARE)

    async def sleep(self, poll_took: float = 0.0, at_most: float | None = None) -> None:
        """Wait until the next poll. poll_took: seconds; at_most: seconds until a deadline."""
        pause = self.next_pause(poll_took)
        await self.core.clock.sleep(pause if at_most is None else min(pause, max(at_most, 0.0)))

    def next_pause(self, poll_took: float = 0.0) -> float:
        """Seconds until the next poll, for callers that wait by other means than `sleep`."""
        local, interval = self.core.store.local, self.core.settings.poll_interval
        if self._pauses is None:
            self._pauses = self._backoff(min(_MIN_LOCAL_PAUSE, interval) if local else interval)
        pause = next(self._pauses)
        return max(pause, poll_took * _LOCAL_PAUSE_RATIO) if local else self.core.jittered(pause)

    def _backoff(self, first: float) -> Iterator[float]:
        intervals = 1 if self.core.store.local else _MAX_PAUSE_INTERVALS
        return backoff(first, self.core.settings.poll_interval * intervals, _GROWTH)


_ASK_PAUSES = 30.0, 600.0
"""Seconds between two requests of one waiter, the first pause and the longest: each reads every agent's record."""

_MACHINE_PAUSES = WARN_AFTER, 30.0
"""The same while jobs wait for machines: a start of a machine may fail within seconds."""

_MAX_REASONS = 3
"""Reasons in one line, the most frequent first: more would hide what to do."""


@dataclass(slots=True)
class WaitingReasons:
    """Reports why the jobs of one waiter have not started; reads agents after two seconds, then more and more rarely.

    A job's failed attempt is reported without a further read of the agents.

    Attributes:
        on_machines: called the first time that jobs wait in pools that may have machines.
    """

    core: Core
    on_machines: Callable[[], None] = lambda: None
    _since: dict[str, float] = field(default_factory=dict)
    _why: dict[tuple[str, int], str] = field(default_factory=dict)
    """By id and attempt of the job."""
    _live: list[AgentRecord] | None = None
    _pauses: Iterator[float] = field(default_factory=lambda: backoff(*_ASK_PAUSES))
    _machine_pauses: Iterator[float] = field(default_factory=lambda: backoff(*_MACHINE_PAUSES))
    _ask_at: float = 0.0
    _reported: str = ""
    _machines: bool = False

    @property
    def text(self) -> str:
        """The reasons in one line, as of the last update; "" if none is known."""
        reasons = Counter(self._why.values()).most_common(_MAX_REASONS)
        return "; ".join(f"{count} x {why}" for why, count in reasons) if len(reasons) > 1 else "".join(dict(reasons))

    async def update(self, jobs: Iterable[JobRecord]) -> str:
        """Update with the present jobs; returns the reasons if they have changed since the last update, else ""."""
        now = self.core.clock.boottime()
        jobs = list(jobs)
        waiting = [job for job in jobs if job.status in WAITING_TO_START]
        self._since = {job.id: self._since.get(job.id, now) for job in waiting}
        late = [job for job in waiting if now - self._since[job.id] >= WARN_AFTER]
        if late and now >= self._ask_at:
            with suppress(StoreError):  # a wait must not fail because its reason is unknown
                self._live = live_agents(await refreshed_agents(self.core), self.core.now())
                self._why = {}
            self._ask_at = self.core.clock.boottime() + next(self._pauses)
        unknown = [job for job in late if _attempt(job) not in self._why] if self._live is not None else []
        around: dict[str, ReservationRecord] = {}
        machines: dict[str, str] = {}
        with suppress(StoreError):  # without reservations and machines the reasons only say less
            around = await reservations_around(self.core, unknown)
            machines = await machines_for(self.core, unknown, around)
        if machines:
            if not self._machines:
                self._machines = True
                self.on_machines()
            self._ask_at = min(self._ask_at, self.core.clock.boottime() + next(self._machine_pauses))
        reasons = reasons_by_job(unknown, with_claims(self._live or (), jobs), self.core.now(), around, machines)
        found = self._why | {_attempt(job): reasons[job.id] for job in unknown}
        self._why = {key: found[key] for key in map(_attempt, late) if key in found}
        before, self._reported = self._reported, self.text
        return self._reported if self._reported != before else ""


def _attempt(job: JobRecord) -> tuple[str, int]:
    return job.id, job.attempt


@dataclass(slots=True)
class ActivityReports:
    """Reports what a job's agent does before the task starts, from the agent's heartbeats.

    Attributes:
        activity: the agent's activity in words, as of the last update; "" once the task runs.
    """

    core: Core
    activity: str = ""
    _started_attempt: int = 0
    _not_before: float = 0.0

    async def update(self, job: JobRecord) -> str:
        """Update with a job that has not printed anything; returns the agent's activity if it has changed, else "".

        Reads the agent's record once per heartbeat until the task runs; of a gang, the record of the first member.
        """
        now = self.core.clock.boottime()
        asks = _brings_something(job) and job.attempt != self._started_attempt
        holders = holders_of(job)
        if not asks or not holders or now < self._not_before:
            return ""
        self._not_before = now + self.core.settings.beat_interval
        holding = await self._holding(holders[0], job.id)
        if holding is None or holding.attempt != job.attempt:
            return ""
        if holding.usage is not None:
            self._started_attempt = job.attempt
        before, self.activity = self.activity, holding.activity
        return self.activity if self.activity != before else ""

    async def _holding(self, agent: str, job_id: str) -> Holding | None:
        """The agent's holding of the job; None also if its record cannot be read: a wait must not fail for that."""
        with suppress(StoreError, BadRecord):
            found = await self.core.records.read(AgentKeys.key(agent), AgentRecord)
            return found.record.holdings.get(job_id) if found is not None else None
        return None


def _brings_something(job: JobRecord) -> bool:
    environment = job.spec.environment
    return environment.workspace is not None or needs_environment(environment) or bool(environment.docker_image)


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


def _failed(job: JobRecord) -> bool:
    return is_terminal(job) and job.status != Status.SUCCEEDED


async def _missing_job(core: Core, job: str, was_there: bool) -> JobGone | JobNotFound:
    if was_there:
        await core.store.confirm_root()
        return JobGone(f"the record of {job} was removed while it was waited for; its outcome is no longer known")
    return await job_not_found(core, job)
