"""The output of jobs in the program that launched them, while they run.

A driver that shows what its jobs print (`StorageCluster.log_to_driver`) reads their log chunks from the storage as they
appear; otherwise it asks for nothing. Of a running job that is one read each time that its agent may have stored the
next chunk, ever fewer while the job is silent, and at most `LOOKS_PER_SECOND` for all jobs together. Records are read
for those jobs only that nobody waits for. Nothing here fails or delays who waits, but for the last lines of a job that
has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from fray.cluster.log_printer import JobPrefix
from fray_agents.runner.task_log import CHUNK_BYTES, FIRST_SEAL_PART, SEAL_INTERVAL
from fray_coordinator.backoff import backoff
from fray_coordinator.clock import Clock
from fray_coordinator.concurrency import MAX_CONCURRENT
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, JobNotFound
from fray_coordinator.jobs.logs import LogCursor, LogLine
from fray_coordinator.jobs.lookup import read_job
from fray_coordinator.jobs.submission import Submitted
from fray_coordinator.protocol.transitions import Status, is_terminal, is_waiting
from fray_layouts.errors import FrayError
from fray_layouts.escaping import escaped_bytes
from fray_layouts.records import JobRecord
from fray_layouts.spec import is_gang

log = logging.getLogger("fray")

LOOKS_PER_SECOND, LOCAL_LOOKS_PER_SECOND = 10, 100
"""Looks at the logs of all running jobs in a second: on a bucket each is a request or two, on local files 0.2 ms."""

_MAX_PAUSE, _MAX_LOCAL_PAUSE = 30.0, 0.25
"""Seconds between two looks at a job that prints nothing."""

_NO_TWO_CHUNKS = 1.25 * SEAL_INTERVAL
"""Seconds since the last look within which an agent stores no two chunks that are not full."""

_GROWTH = 1.5
"""From one pause to the next."""

LAST_LINES_TIMEOUT = 2.0
"""Seconds that who waits for a job may wait longer for its last lines: two slow requests. Later ones come later."""

CHUNKS_AT_ONCE = 4
"""Chunks of a job, 1 MB, that are read one after the other; a job that is further ahead prints more than is shown."""

LINES_PER_SECOND, LINES_AT_ONCE = 100, 1000
"""Lines of one job that are shown, lastingly and in a burst: as many as a person can skim, and a long traceback."""


class DriverLog:
    """The jobs whose output this program shows; lives in the background loop.

    Args:
        shows: whether a job's output is to be read from its log; of one that is a thread here it is not.
        show: gets lines, each with the name of its stream.
    """

    def __init__(
        self,
        core: Core,
        shows: Callable[[JobRecord], bool],
        show: Callable[[Iterable[tuple[str, str]]], None],
    ) -> None:
        self.core = core
        self.show = show
        self.reading = asyncio.Semaphore(MAX_CONCURRENT)
        self.leaving = False
        self._shows = shows
        self._followed: dict[str, FollowedJob] = {}

    def follow(self, launched: Iterable[Submitted]) -> None:
        """Show what these jobs print from now on."""
        for submitted in launched:
            job = submitted.job
            if job.id not in self._followed and not is_terminal(job) and self._shows(job):
                followed = self._followed[job.id] = FollowedJob(self, job, submitted.found)
                followed.reader.add_done_callback(lambda _, job_id=job.id: self._followed.pop(job_id, None))  # type: ignore[misc]

    def forget(self, job_id: str) -> None:
        """Show nothing more of this job."""
        if (followed := self._followed.pop(job_id, None)) is not None:
            followed.reader.cancel()

    def note(self, job: JobRecord) -> None:
        """Take note of a job's record that somebody has read."""
        if (followed := self._followed.get(job.id)) is not None:
            followed.note(job)

    @asynccontextmanager
    async def waiting(self, jobs: Iterable[str]) -> AsyncIterator[None]:
        """While somebody waits for these jobs, and `note`s their records, they are not read here.

        In the end it waits for the last lines of those that have ended.
        """
        followed = [self._followed[job] for job in jobs if job in self._followed]
        for each in followed:
            each.watchers += 1
        try:
            yield
            await _ended((each.reader for each in followed if is_terminal(each.job)), LAST_LINES_TIMEOUT)
        finally:
            for each in followed:
                each.watchers -= 1
                each.changed.set()

    async def leave(self, timeout: float) -> None:
        """Show the last lines of the jobs that end with this program, as far as they come in time, and then no more."""
        self.leaving = True
        readers = [followed.reader for followed in self._followed.values()]
        for followed in self._followed.values():
            followed.changed.set()
        await _ended(readers, timeout)
        for reader in readers:
            reader.cancel()

    def spread(self, pause: float) -> float:
        """`pause`, or longer, so that there are not too many looks in a second."""
        active = sum(not is_waiting(each.job) or not each.watchers for each in self._followed.values())
        return max(pause, active / (LOCAL_LOOKS_PER_SECOND if self.core.store.local else LOOKS_PER_SECOND))


async def _ended(readers: Iterable[asyncio.Task[None]], timeout: float) -> None:
    if tasks := list(readers):
        await asyncio.wait(tasks, timeout=timeout)


class FollowedJob:
    """One job whose output is shown.

    Attributes:
        job: its record as last read.
        changed: it is to be looked at now.
        watchers: how many wait for it, and `note` its records.
        reader: ends once the job has ended and all is shown.
    """

    def __init__(self, driver_log: DriverLog, job: JobRecord, found: bool) -> None:
        self.job = job
        self.changed = asyncio.Event()
        self.watchers = 0
        self._log = driver_log
        self._cursor = LogCursor(driver_log.core, job, job.attempt)
        self._passes_over = found and job.status == Status.RUNNING  # an earlier driver has shown what is there
        self._looked_at = float("-inf")
        self._display = LineDisplay(job.id, driver_log.core.clock, is_gang(job.spec))
        self.reader = asyncio.create_task(self._read())

    def note(self, job: JobRecord) -> None:
        started = (job.status, job.attempt) != (self.job.status, self.job.attempt)
        self.job = job
        if started or job.stop is not None:
            self.changed.set()

    async def _read(self) -> None:
        """Look, pause, and so on."""
        pauses = self._pauses(self._log.core.settings.poll_interval)
        attempt = self.job.attempt if self._passes_over else 0
        while True:
            self.changed.clear()
            try:
                async with self._log.reading:
                    job = await self._current()
                    has_begun = job.status == Status.RUNNING and job.attempt != attempt
                    shown = not has_begun and await self._show_new(job)
            except (JobNotFound, BadRecord) as error:
                log.debug("the output of %s is not shown any more: %s", self.job.id, error)
                return
            except FrayError as error:
                log.debug("the output of %s cannot be read now: %s", self.job.id, error)
            else:
                if is_terminal(job) or (self._log.leaving and not _ends_with_driver(job)):
                    return
                if has_begun or shown:
                    attempt, pauses = job.attempt, self._pauses(SEAL_INTERVAL * (FIRST_SEAL_PART if has_begun else 1))
            await self._pause(next(pauses))

    async def _current(self) -> JobRecord:
        if not self.watchers and not is_terminal(self.job):
            self.job = (await read_job(self._log.core, self.job.id)).record
        return self.job

    async def _show_new(self, job: JobRecord) -> bool:
        """Show what is stored by now; whether that was anything."""
        if self._passes_over:
            await self._cursor.skip_to_last(job)
            self._passes_over = False
        now, count = self._log.core.clock.boottime(), 0
        since_look, self._looked_at = now - self._looked_at, now
        while (chunk := await self._cursor.next_chunk(job)) is not None:
            self._log.show(self._display.lines(chunk))
            count += 1
            if count == CHUNKS_AT_ONCE:
                self._display.is_partial = await self._cursor.skip_to_last(job)
            is_full = sum(len(line.data) for line in chunk) > CHUNK_BYTES // 2
            is_newest = since_look < _NO_TWO_CHUNKS and not is_full
            if not is_terminal(job) and (is_newest or count == CHUNKS_AT_ONCE):
                break
        return count > 0

    def _pauses(self, first: float) -> Iterator[float]:
        longest = _MAX_LOCAL_PAUSE if self._log.core.store.local else _MAX_PAUSE
        return backoff(min(first, longest), longest, _GROWTH)

    async def _pause(self, seconds: float) -> None:
        """Wait that long, or until there is reason to look."""
        if self._log.leaving or self.job.stop is not None:
            seconds = min(seconds, self._log.core.settings.poll_interval)
        is_told = self.watchers and is_waiting(self.job)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.changed.wait(), None if is_told else self._log.spread(seconds))


def _ends_with_driver(job: JobRecord) -> bool:
    """Whether a job that has not ended soon will, because this program ends."""
    is_owned = job.parent is not None and not job.parent.detached
    return job.status == Status.RUNNING and (is_owned or job.stop is not None)


class LineDisplay:
    """Makes the lines of one job fit for a terminal: prefixed, escaped, and not more than a person can follow.

    Args:
        names_replicas: each line's prefix has the replica that wrote it.

    Attributes:
        is_partial: what comes next does not follow on what came before.
    """

    def __init__(self, job_id: str, clock: Clock, names_replicas: bool = False) -> None:
        self.is_partial = False
        self._names_replicas = names_replicas
        self._job_id = job_id
        self._prefix = JobPrefix(job_id)
        self._clock = clock
        self._allowance = float(LINES_AT_ONCE)
        self._at = clock.boottime()
        self._unfinished: set[tuple[int, str]] = set()

    def lines(self, chunk: Sequence[LogLine]) -> list[tuple[str, str]]:
        """The chunk's lines as they are shown, each with the name of its stream: the last, if there are too many."""
        found = [(line, text) for line in chunk if (text := self._text(line)) is not None]
        most = int(self._refilled())
        shown = found[max(0, len(found) - most) :]
        self._allowance -= len(shown)
        lines = [(line.stream, self._prefix_of(line)[line.stream] + text) for line, text in shown]
        if self.is_partial or len(shown) < len(found):
            missing = len(found) - len(shown)
            count = "lines" if self.is_partial else "1 line" if missing == 1 else f"{missing:,} lines"
            prefix = self._prefix.by_stream(chunk[0].attempt)["stderr"]
            lines.insert(0, ("stderr", f"{prefix}... {count} left out; `fray logs {self._job_id}` has all"))
            self.is_partial = False
        return lines

    def _prefix_of(self, line: LogLine) -> Mapping[str, str]:
        return self._prefix.by_stream(line.attempt, line.replica if self._names_replicas else None)

    def _text(self, line: LogLine) -> str | None:
        """What a terminal would show of it in the end: of a progress bar its last state. None: the end of what was."""
        place = line.replica, line.stream
        is_rest = place in self._unfinished
        (self._unfinished.discard if line.complete else self._unfinished.add)(place)
        if is_rest and line.complete and not line.data:
            return None
        return escaped_bytes(line.data.rstrip(b"\r").rpartition(b"\r")[2])

    def _refilled(self) -> float:
        now = self._clock.boottime()
        gained = (now - self._at) * LINES_PER_SECOND
        self._at, self._allowance = now, min(LINES_AT_ONCE, self._allowance + gained)
        return self._allowance
