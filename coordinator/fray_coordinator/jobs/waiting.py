"""Waiting for jobs and following their logs, by polling that is cheap.

A look at few jobs is one conditional read each; at many it is one LIST with versions, whatever their number. While
nothing changes, looks grow rarer. Log followers ask for the next chunk number and never list.
"""

from __future__ import annotations

import math
import os.path
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field

from fray_coordinator.core import Core, map_concurrently
from fray_coordinator.errors import BadRecord, JobGone, JobNotFound
from fray_coordinator.jobs.live_usage import refreshed_agents
from fray_coordinator.jobs.lookup import live_agents, unschedulable_reason, waiting_reasons
from fray_coordinator.protocol.scheduling import shape_of
from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_coordinator.store.metering import ROWS_PER_REQUEST
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import (
    JobId,
    JobKeys,
    Shape,
    WorkKeys,
)
from fray_layouts.records import JobRecord

READS_PER_LIST = 12
"""Providers price one page of a listing like twelve reads."""

DIAGNOSE_AFTER = 3.0
"""Seconds that a job is seen pending before its watcher asks why."""

WARN_AFTER = 30.0
"""Seconds that it is seen waiting for room, which others may give back, before its watcher says so."""

_DIAGNOSE_INTERVAL = 30.0
_MAX_AGENTS_NAMED = 3
_MIN_LOCAL_PAUSE = 0.005
_PAUSE_GROWTH = 1.5
_MAX_PAUSE_INTERVALS = 10
_EAGER_POLLS_PER_INTERVAL = 6
_LOCAL_PAUSE_RATIO = 4


@dataclass(slots=True)
class PollBackoff:
    """How long to wait between looks: short after a change, longer while nothing happens.

    Where requests are free the first looks come within milliseconds, so that a short job is noticed when it ends, and
    looking takes no more than a fifth of the time.
    """

    core: Core
    _wait: float = 0.0

    def changed(self) -> None:
        """Something happened: look soon again."""
        self._wait = 0.0

    def begun(self) -> None:
        """Something was begun that may be done at once: look sooner than after a change, and then ever later."""
        self._wait = 0.0 if self.core.store.local else self.core.settings.poll_interval / _EAGER_POLLS_PER_INTERVAL

    async def rest(self, look_took: float = 0.0, at_most: float | None = None) -> None:
        """Wait until the next look. `look_took`: seconds; `at_most`: seconds until a deadline."""
        wait = self.pause(look_took)
        await self.core.clock.sleep(wait if at_most is None else min(wait, max(at_most, 0.0)))

    def pause(self, look_took: float = 0.0) -> float:
        """Seconds until the next look, for who waits otherwise."""
        interval, local = self.core.settings.poll_interval, self.core.store.local
        first = min(_MIN_LOCAL_PAUSE, interval) if local else interval
        longest = interval if local else interval * _MAX_PAUSE_INTERVALS
        self._wait = min(longest, self._wait * _PAUSE_GROWTH or first)
        return max(self._wait, look_took * _LOCAL_PAUSE_RATIO) if local else self.core.jittered(self._wait)


@dataclass(slots=True)
class UnschedulableWarnings:
    """Says why a job does not start: no live agent could ever run it, or for long none has had room for it.

    Asks for that only when a job stayed pending for a while, and says it once for each pool and shape.

    Args:
        tell: gets a job and the sentence.
    """

    core: Core
    tell: Callable[[JobRecord, str], None] | None
    _since: dict[str, float] = field(default_factory=dict)
    _told: set[tuple[str, Shape]] = field(default_factory=set)
    _reasons: dict[str, str] = field(default_factory=dict)
    _not_before: float = 0.0

    async def hear(self, jobs: Iterable[JobRecord]) -> None:
        """Take note of jobs as they are now."""
        if self.tell is None:
            return
        now = self.core.clock.boottime()
        waiting = [job for job in jobs if job.status == Status.PENDING]
        self._since = {job.id: self._since.get(job.id, now) for job in waiting}
        self._reasons = {job: why for job, why in self._reasons.items() if job in self._since}
        late = {
            (job.spec.pool, shape_of(job.spec)): job
            for job in reversed(waiting)
            if now - self._since[job.id] >= DIAGNOSE_AFTER
        }
        untold = {kind: job for kind, job in late.items() if kind not in self._told}
        if untold and now >= self._not_before:
            self._not_before = now + _DIAGNOSE_INTERVAL
            await self._ask(untold)

    def summary(self) -> str:
        """What is known of one that waits, as the end of a sentence."""
        return next((f"; {job} waits: {why}" for job, why in self._reasons.items()), "")

    async def _ask(self, waiting: dict[tuple[str, Shape], JobRecord]) -> None:
        agents, now = await refreshed_agents(self.core), self.core.clock.boottime()
        for kind, job in waiting.items():
            live = live_agents(agents, job.spec.pool, self.core.now())
            hopeless = unschedulable_reason(job, live)
            why = self._reasons[job.id] = hopeless or "; ".join(
                waiting_reasons(job, live, self.core.now())[:_MAX_AGENTS_NAMED]
            )
            if self.tell is not None and (hopeless or now - self._since[job.id] >= WARN_AFTER):
                self._told.add(kind)
                self.tell(job, why)


@dataclass(slots=True)
class _WatchedJobs:
    """The jobs that are waited for, each with its record as last read."""

    core: Core
    ids: list[str]
    known: dict[str, Stored[JobRecord]] = field(default_factory=dict)
    _pages: int = 1

    def unfinished(self) -> list[str]:
        return [job for job in self.ids if job not in self.known or not is_terminal(self.known[job].record)]

    async def look(self) -> list[JobRecord]:
        """Read what changed; returns the records that did."""
        ids = self.unfinished()
        if len(self.known) == len(self.ids) and len(ids) > READS_PER_LIST * self._pages:
            ids = await self._changed_by_listing(ids)
        found = await map_concurrently(ids, self._read, at_once=32)
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
            now = await self.core.records.read(JobKeys.key(JobId.checked(job)), JobRecord)
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
    on_waiting: Callable[[JobRecord, str], None] | None = None,
) -> dict[str, JobRecord]:
    """Wait until all jobs have ended.

    Args:
        timeout: seconds; None waits for ever.
        any_failure: return as soon as one has failed or was stopped.
        on_change: gets each record when it is first seen and when it changed.
        on_waiting: gets a job that stays pending and the reason: at once if nothing that is there will ever start it.

    Returns:
        The records by id, in the given order; with `any_failure` some may not have ended.

    Raises:
        TimeoutError: some have not ended in time.
        JobNotFound: there is no such job.
        JobGone: a record vanished while it was waited for.
    """
    watched, pace, complaints = (
        _WatchedJobs(core, list(dict.fromkeys(job_ids))),
        PollBackoff(core),
        UnschedulableWarnings(core, on_waiting),
    )
    begin = core.clock.boottime()
    while True:
        looked_at = core.clock.boottime()
        changed = await watched.look()
        for job in changed:
            if on_change is not None:
                on_change(job)
        records = {job: watched.known[job].record for job in watched.ids}
        left = watched.unfinished()
        if not left or (any_failure and any(_failed(job) for job in records.values())):
            return records
        if changed:
            pace.changed()
        await complaints.hear(records[job] for job in left)
        now = core.clock.boottime()
        remaining = None if timeout is None else begin + timeout - now
        if remaining is not None and remaining <= 0:
            raise TimeoutError(
                f"{len(left)} of {len(watched.ids)} jobs have not ended within {timeout:g} s: {_some(left)}"
                f"{complaints.summary()}"
            )
        await pace.rest(now - looked_at, remaining)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a job's output, or a piece of one.

    Attributes:
        time: RFC 3339, UTC, microseconds.
        stream: "stdout" or "stderr".
        data: without its newline.
        complete: a newline followed; pieces that are not complete go on in the stream's next line.
    """

    attempt: int
    replica: int
    time: str
    stream: str
    data: bytes
    complete: bool


async def follow_chunks(
    core: Core, job_id: str, on_waiting: Callable[[JobRecord, str], None] | None = None
) -> AsyncGenerator[list[LogLine], None]:
    """The job's log, a chunk at a time, through all its attempts until the job has ended and all is read.

    Raises:
        JobNotFound, JobGone: as `wait_for`.
    """
    watched, pace, complaints = _WatchedJobs(core, [job_id]), PollBackoff(core), UnschedulableWarnings(core, on_waiting)
    attempt, number = 1, 1
    while True:
        if await watched.look():
            pace.changed()
        job = watched.known[job_id].record
        while (chunk := await _chunk(core, job, attempt, number)) is not None:
            yield chunk
            number += 1
            pace.changed()
        if attempt < job.attempt:
            attempt, number = attempt + 1, 1
        elif is_terminal(job):
            return
        else:
            await complaints.hear([job])
            await pace.rest()


async def read_logs(core: Core, job: JobRecord, max_lines: int | None = None) -> list[LogLine]:
    """What the current attempt (the last, if the job has ended) has printed so far; at most its last `max_lines`."""
    count = _chunks_written(job, job.attempt)
    if max_lines is not None and count != math.inf:
        return await _read_tail(core, job, int(count), max_lines)
    lines: deque[LogLine] = deque(maxlen=max_lines)
    number = 1
    while (chunk := await _chunk(core, job, job.attempt, number)) is not None:
        lines.extend(chunk)
        number += 1
    return list(lines)


async def _read_tail(core: Core, job: JobRecord, count: int, max_lines: int) -> list[LogLine]:
    lines: list[LogLine] = []
    for number in range(count, 0, -1):
        if len(lines) >= max_lines:
            break
        if (chunk := await _chunk(core, job, job.attempt, number)) is None:
            break  # it was removed, and what is before it too
        lines = [*chunk, *lines]
    return lines[max(len(lines) - max_lines, 0) :]


async def _chunk(core: Core, job: JobRecord, attempt: int, number: int) -> list[LogLine] | None:
    """One chunk of an attempt; None if it is not there, or cannot be there by what `job` says."""
    if number > _chunks_written(job, attempt):
        return None
    key = WorkKeys.log(job.id, attempt, 0, number)
    found = await core.store.get(key)
    if found is None:
        return None
    return [_parse(key, line, attempt, 0) for line in found.data.removesuffix(b"\n").split(b"\n")]


_LINE = re.compile(rb"([0-9TZ:.-]+) (stdout|stderr) ([FP]) (.*)", re.DOTALL)


def _parse(key: str, line: bytes, attempt: int, replica: int) -> LogLine:
    found = _LINE.fullmatch(line)
    if found is None:
        raise BadRecord(f"{key} holds a line that is not in the log format: {line[:80]!r}")
    time, stream, tag, data = found.groups()
    return LogLine(attempt, replica, time.decode(), stream.decode(), data, tag == b"F")


def _chunks_written(job: JobRecord, attempt: int) -> float:
    """How many chunks an attempt has at most: its own number once it has ended and told, none before it runs."""
    past = {earlier.attempt: earlier.exit for earlier in job.history}
    end = job.exit if attempt == job.attempt else past.get(attempt)
    if attempt == job.attempt and job.status in (Status.PENDING, Status.UNADMITTED):
        return 0
    return math.inf if end is None or end.log_chunks is None else end.log_chunks


def _failed(job: JobRecord) -> bool:
    return is_terminal(job) and job.status != Status.SUCCEEDED


def _missing_job(core: Core, job: str, was_there: bool) -> JobGone | JobNotFound:
    if was_there:
        return JobGone(f"the record of {job} was removed while it was waited for; its outcome is no longer known")
    return JobNotFound(f"there is no job {job} under {core.root}; `fray ps --all` lists those that exist")


def _some(jobs: list[str]) -> str:
    return ", ".join(jobs[:3]) + (f" and {len(jobs) - 3} more" if len(jobs) > 3 else "")
