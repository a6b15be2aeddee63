"""Waiting for jobs to end, by polling that is cheap.

A look at few jobs is one conditional read each; at many it is one LIST with versions, whatever their number.
Records are polled soon after a change, and ever more rarely while nothing happens. Who waits for more than two seconds
is told how far the jobs are, and why those wait that have not started.
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
from fray_coordinator.errors import JobGone, JobNotFound, StoreError
from fray_coordinator.jobs.lookup import job_not_found, live_agents, refreshed_agents
from fray_coordinator.jobs.why_in_reservation import reservations_around
from fray_coordinator.jobs.why_machines import machines_for
from fray_coordinator.jobs.why_waiting import reasons_by_job
from fray_coordinator.protocol.claiming import WAITING_TO_START
from fray_coordinator.protocol.stopping import holders_of
from fray_coordinator.protocol.transitions import Status, is_terminal, is_waiting
from fray_coordinator.store.metering import ROWS_PER_REQUEST
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import AgentKeys, JobIds, JobKeys
from fray_layouts.records import AgentRecord, JobRecord, ReservationRecord
from fray_layouts.spec import needs_environment

READS_PER_LIST = 12
"""One page of a listing costs as much as twelve reads, on GCS and on S3."""


@dataclass(slots=True)
class WatchedJobs:
    """Jobs that are polled, each with its record as last read."""

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
        """The record if it changed."""
        before = self.known.get(job)
        if before is None:
            now = await self.core.records.read(JobKeys.key(JobIds.checked(job)), JobRecord)
        else:
            now = await self.core.records.reread(before)
        if now is None:
            raise _missing_job(self.core, job, before is not None)
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
        on_change: gets each record when it is first seen and when it changed.
        on_progress: after two seconds gets how far the jobs are, at every look; None: nobody wants to know, and nothing
            is asked.
        on_machines: called if jobs wait in pools that may have machines, of which nobody is told without `on_progress`.

    Returns:
        The records by id, in the given order; with `any_failure` some may not have ended.

    Raises:
        TimeoutError: some have not ended in time; it says how far they are, and why they wait.
        JobNotFound: there is no such job.
        JobGone: a record vanished while it was waited for.
    """
    watched, pace = WatchedJobs(core, list(dict.fromkeys(job_ids))), PollBackoff(core)
    reasons = WaitingReasons(core, on_machines)
    begin = core.clock.boottime()
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
        remaining = None if timeout is None else begin + timeout - now
        if remaining is not None and remaining <= 0:
            progress = WaitProgress.of(records.values(), reasons.text)
            why = progress.why or f"`fray status {left[0]}` tells more"
            raise TimeoutError(f"{progress.text} after {timeout:g} s ({_some(left)}): {why}")
        if on_progress is not None and now - begin >= WARN_AFTER:
            on_progress(WaitProgress.of(records.values(), reasons.text))
        await pace.sleep(now - polled_at, remaining)


@dataclass(frozen=True, slots=True)
class WaitProgress:
    """How far jobs are for which someone waits.

    Attributes:
        ended: "1 of 4 jobs done".
        others: "1 running, 2 waiting", and how many of those that ended failed.
        why: some wait; "" if none is known to.
    """

    ended: str
    others: str
    why: str

    @property
    def text(self) -> str:
        """How far they are, in a few words."""
        return ", ".join(filter(None, [self.ended, self.others]))

    @classmethod
    def of(cls, jobs: Iterable[JobRecord], why: str) -> WaitProgress:
        """From their records. why: of those that have not started."""
        jobs = list(jobs)
        ended, failed = sum(map(is_terminal, jobs)), sum(map(_failed, jobs))
        waiting = sum(map(is_waiting, jobs))
        counts = {"failed": failed, "running": len(jobs) - ended - waiting, "waiting": waiting}
        others = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        return cls(f"{ended} of {len(jobs)} jobs done", others, why)


def _failed(job: JobRecord) -> bool:
    return is_terminal(job) and job.status != Status.SUCCEEDED


def _missing_job(core: Core, job: str, was_there: bool) -> JobGone | JobNotFound:
    if was_there:
        return JobGone(f"the record of {job} was removed while it was waited for; its outcome is no longer known")
    return job_not_found(core, job)


def _some(jobs: list[str]) -> str:
    return ", ".join(jobs[:3]) + (f" and {len(jobs) - 3} more" if len(jobs) > 3 else "")


_GROWTH = 1.5
"""From one pause to the next. The pauses before one add up to twice that one, so what took a time is noticed at most
half that time later."""
_MAX_PAUSE_INTERVALS = 10
"""Poll intervals in the longest pause on a bucket, where every poll is paid for."""
_EAGER_SHARE = 0.25
"""Of the poll interval: the first pause after something was begun that may be done at once."""
_MIN_LOCAL_PAUSE = 0.005
"""Seconds; where requests are free, so that a short job is noticed when it ends. A poll there takes 0.1 ms."""
_LOCAL_PAUSE_RATIO = 4
"""Seconds of pause for each second that a local poll took, so that polling takes no more than a fifth of the time."""


@dataclass(slots=True)
class PollBackoff:
    """The pauses of one poller."""

    core: Core
    _pauses: Iterator[float] | None = None

    def reset(self) -> None:
        """Something happened: poll soon again."""
        self._pauses = None

    def expect_soon(self) -> None:
        """Something was begun that may be done at once: poll sooner than after a change, and then ever later."""
        interval = self.core.settings.poll_interval
        self._pauses = None if self.core.store.local else self._backoff(interval * _EAGER_SHARE)

    async def sleep(self, poll_took: float = 0.0, at_most: float | None = None) -> None:
        """Wait until the next poll. poll_took: seconds; at_most: seconds until a deadline."""
        pause = self.next_pause(poll_took)
        await self.core.clock.sleep(pause if at_most is None else min(pause, max(at_most, 0.0)))

    def next_pause(self, poll_took: float = 0.0) -> float:
        """Seconds until the next poll, for callers that wait in another way than by `sleep`."""
        local, interval = self.core.store.local, self.core.settings.poll_interval
        if self._pauses is None:
            self._pauses = self._backoff(min(_MIN_LOCAL_PAUSE, interval) if local else interval)
        pause = next(self._pauses)
        return max(pause, poll_took * _LOCAL_PAUSE_RATIO) if local else self.core.jittered(pause)

    def _backoff(self, first: float) -> Iterator[float]:
        intervals = 1 if self.core.store.local else _MAX_PAUSE_INTERVALS
        return backoff(first, self.core.settings.poll_interval * intervals, _GROWTH)


_ASK_PAUSES = 30.0, 600.0
"""Seconds between two questions of one waiter, the first and the longest: each reads every agent's record."""

_MAX_REASONS = 3
"""Reasons in one line, those of most jobs first: more would hide what to do."""


@dataclass(slots=True)
class WaitingReasons:
    """Why the jobs of one waiter have not started. The agents are asked after two seconds, then ever more rarely.

    Attributes:
        on_machines: called once jobs wait in pools that may have machines.
    """

    core: Core
    on_machines: Callable[[], None] = lambda: None
    _since: dict[str, float] = field(default_factory=dict)
    _why: dict[str, str] = field(default_factory=dict)
    _live: list[AgentRecord] | None = None
    _pauses: Iterator[float] = field(default_factory=lambda: backoff(*_ASK_PAUSES))
    _ask_at: float = 0.0
    _told: str = ""
    _machines: bool = False

    @property
    def text(self) -> str:
        """The reasons in one line, as of the last update; "" if none is known."""
        reasons = Counter(self._why.values()).most_common(_MAX_REASONS)
        return "; ".join(f"{count} x {why}" for why, count in reasons) if len(reasons) > 1 else "".join(dict(reasons))

    async def update(self, jobs: Iterable[JobRecord]) -> str:
        """Take note of jobs as they are now; the reasons if others are known than at the last time, else ""."""
        now = self.core.clock.boottime()
        waiting = [job for job in jobs if job.status in WAITING_TO_START]
        self._since = {job.id: self._since.get(job.id, now) for job in waiting}
        late = [job for job in waiting if now - self._since[job.id] >= WARN_AFTER]
        if late and now >= self._ask_at:
            with suppress(StoreError):  # no wait fails for want of a reason
                self._live = live_agents(await refreshed_agents(self.core), self.core.now())
                self._why = {}
            self._ask_at = self.core.clock.boottime() + next(self._pauses)
        unknown = [job for job in late if job.id not in self._why] if self._live is not None else []
        around: dict[str, ReservationRecord] = {}
        machines: dict[str, str] = {}
        with suppress(StoreError):
            around = await reservations_around(self.core, unknown)
            machines = await machines_for(self.core, unknown, around)
        if machines:
            first, self._machines = not self._machines, True
            if first:
                self.on_machines()
            soon = self.core.settings.pass_interval if first else _ASK_PAUSES[0]  # machines come and go quickly
            self._ask_at = min(self._ask_at, self.core.clock.boottime() + soon)
        found = self._why | reasons_by_job(unknown, self._live or (), self.core.now(), around, machines)
        self._why = {job.id: found[job.id] for job in late if job.id in found}
        before, self._told = self._told, self.text
        return self._told if self._told != before else ""


@dataclass(slots=True)
class ActivityReports:
    """What a job's agent does before the task starts, as its heartbeats say.

    Attributes:
        told: what it does, in words, as of the last update; "" once the task runs.
    """

    core: Core
    told: str = ""
    _started_attempt: int = 0
    _not_before: float = 0.0

    async def update(self, job: JobRecord) -> str:
        """Take note of a job that has not printed anything; what its agent does if that is new, else "".

        The agent is asked once a beat until the task runs; of a gang, the one of the first member.
        """
        now = self.core.clock.boottime()
        asks = _brings_something(job) and job.attempt != self._started_attempt
        holders = holders_of(job)
        if not asks or not holders or now < self._not_before:
            return ""
        self._not_before = now + self.core.settings.beat_interval
        agent = await self.core.records.read(AgentKeys.key(holders[0]), AgentRecord)
        holding = agent.record.holdings.get(job.id) if agent is not None else None
        if holding is None or holding.attempt != job.attempt:
            return ""
        if holding.usage is not None:
            self._started_attempt = job.attempt
        before, self.told = self.told, holding.activity
        return self.told if self.told != before else ""


def _brings_something(job: JobRecord) -> bool:
    environment = job.spec.environment
    return environment.workspace is not None or needs_environment(environment) or bool(environment.docker_image)
