"""Shows the output of jobs in the program that launched them, while they run.

A driver with `StorageCluster.log_to_driver` reads its jobs' log chunks from the storage as they appear; without it, it
makes no requests. For a running job it makes one read each time that the agent may have stored the next chunk. While
the job prints nothing the reads become rarer, and all jobs together get at most `READS_PER_SECOND` reads. Records are
read only for jobs that no caller waits for, since a waiting caller reads them anyway. Errors here never reach a caller.
A caller's wait is longer only by the time that the last lines of an ended job take.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from fray.cluster import log_printer
from fray.cluster.log_printer import JobPrefix
from fray_agents.runner.task_log import CHUNK_BYTES, FIRST_SEAL_PART, SEAL_INTERVAL
from fray_coordinator.backoff import backoff
from fray_coordinator.clock import Clock
from fray_coordinator.concurrency import MAX_CONCURRENT, start_task
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, JobNotFound
from fray_coordinator.jobs.logs import LogCursor, LogLine
from fray_coordinator.jobs.lookup import read_job, read_jobs
from fray_coordinator.jobs.submission import Submitted
from fray_coordinator.per_process import PerLoop
from fray_coordinator.protocol.transitions import Status, is_terminal, is_waiting
from fray_layouts.escaping import escaped_bytes
from fray_layouts.records import JobRecord
from fray_layouts.spec import is_gang

if TYPE_CHECKING:
    pass

log = logging.getLogger("fray")


PRINT_TIMEOUT = 1.0
"""Seconds that the end of a wait, or of the program, waits for the terminal to show the jobs' output."""

ENDING_TIMEOUT = 3.0
"""Seconds that a program which ends waits for the last lines of the jobs that end with it. An agent learns of a stop
within a second or two, and most actors end at once."""


class DriverOutput:
    """Shows the output of one cluster's jobs in this program. If it is off, its coroutines make no requests.

    Args:
        core: opens the cluster.
        has_log_only: whether a job's output goes only to its log.

    Attributes:
        chosen: the program's choice; None leaves the choice to `log_printer.shows_output`.
    """

    def __init__(self, core: Callable[[], Awaitable[Core]], has_log_only: Callable[[JobRecord], bool]) -> None:
        self.chosen: bool | None = None
        self._core = core
        self._has_log_only = has_log_only
        self._log = PerLoop(self._open)

    @property
    def is_on(self) -> bool:
        return log_printer.shows_output() if self.chosen is None else self.chosen

    def belong_here(self) -> None:
        """Show the output where the caller prints: in a notebook, below the cell that runs."""
        log_printer.printer.value.belong_here()

    def flush(self) -> None:
        """Wait a moment for the terminal to show all lines that were read."""
        log_printer.printer.value.flush(PRINT_TIMEOUT)

    async def follow(self, launched: Sequence[Submitted]) -> None:
        """Show the output of these jobs from now on."""
        if self.is_on:
            (await self._log.get()).follow(launched)

    async def follow_known(self, jobs: Sequence[str]) -> None:
        """Show the output of jobs that were launched before, from their last chunk on."""
        if jobs and self.is_on:
            known = await read_jobs(await self._core(), jobs, problems={})
            await self.follow([Submitted(job, found=True) for job in known])

    async def forget(self, job_id: str) -> None:
        """Stop showing this job's output, because the caller reads its log and shows it."""
        if self.is_on:
            (await self._log.get()).forget(job_id)

    async def note(self, job: JobRecord) -> None:
        """Accept a job's record that was read or written; see `DriverLog.note`."""
        if self.is_on:
            (await self._log.get()).note(job)

    @asynccontextmanager
    async def waiting(self, jobs: Sequence[str]) -> AsyncIterator[Callable[[JobRecord], None] | None]:
        """The block in which a caller waits for these jobs; see `DriverLog.waiting`.

        It gives the function that takes their records, or None if no output is shown.
        """
        if not self.is_on:
            yield None
            return
        driver_log = await self._log.get()
        async with driver_log.waiting(jobs):
            yield driver_log.note

    async def leave(self) -> None:
        """Show the last lines of the jobs that end with this program, then stop."""
        driver_log = await self._log.take()
        if driver_log is not None:
            await driver_log.leave(ENDING_TIMEOUT)

    async def _open(self) -> DriverLog:
        # imported late: most programs show nothing

        return DriverLog(await self._core(), self._has_log_only, log_printer.printer.value.put)


READS_PER_SECOND, LOCAL_READS_PER_SECOND = 10, 100
"""Reads per second of the logs of all running jobs together. On a bucket a read is one or two requests; on local files
it takes 0.2 ms."""

_MAX_PAUSE, _MAX_LOCAL_PAUSE = 30.0, 0.25
"""Longest pause in seconds between two reads of the log of a job that prints nothing."""

_NO_TWO_CHUNKS = 1.25 * SEAL_INTERVAL
"""Seconds after a read in which an agent stores at most one chunk that is not full: its interval and some tolerance."""

_GROWTH = 1.5
"""Each pause is this much longer than the one before: a job that falls silent for a while is still seen soon."""

LAST_LINES_TIMEOUT = 2.0
"""Seconds by which a wait for a job may be longer so that the job's last lines are shown first. That is enough for two
slow requests; lines that come later are shown later."""

CHUNKS_AT_ONCE = 4
"""Chunks of a job, 1 MB together, that are read at once at most. If there are more, the job prints more than is shown
anyway, and the rest is skipped up to the last chunk."""

LINES_PER_SECOND, LINES_AT_ONCE = 100, 1000
"""Lines of one job that are shown per second in the long run, and in a burst. A person can skim the first; the second
fits a long traceback."""


class DriverLog:
    """The jobs whose output this program shows. It is used in the background loop only.

    Args:
        shows: whether a job's output has to be read from its log. A thread of this process prints here itself.
        show: called with lines, each with the name of its stream.
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
        """Show the output of these jobs from now on."""
        for submitted in launched:
            job = submitted.job
            if job.id not in self._followed and not is_terminal(job) and self._shows(job):
                followed = self._followed[job.id] = FollowedJob(self, job, submitted.found)
                followed.reader.add_done_callback(lambda _, job_id=job.id: self._followed.pop(job_id, None))  # type: ignore[misc]

    def forget(self, job_id: str) -> None:
        """Stop showing this job's output."""
        if (followed := self._followed.pop(job_id, None)) is not None:
            followed.reader.cancel()

    def note(self, job: JobRecord) -> None:
        """Accept a job's record that a caller has read, which saves a read here."""
        if (followed := self._followed.get(job.id)) is not None:
            followed.note(job)

    @asynccontextmanager
    async def waiting(self, jobs: Iterable[str]) -> AsyncIterator[None]:
        """The block in which a caller waits for these jobs. It passes their records to `note`, so none are read here.

        At its end it waits until the last lines of the jobs that have ended are shown.
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
        """Show the last lines of the jobs that end with this program, as far as they arrive in time, then stop."""
        self.leaving = True
        readers = [followed.reader for followed in self._followed.values()]
        for followed in self._followed.values():
            followed.changed.set()
        await _ended(readers, timeout)
        for reader in readers:
            reader.cancel()

    def spread(self, pause: float) -> float:
        """Lengthen `pause` as far as needed to keep the limit of reads per second."""
        active = sum(not is_waiting(each.job) or not each.watchers for each in self._followed.values())
        return max(pause, active / (LOCAL_READS_PER_SECOND if self.core.store.local else READS_PER_SECOND))


async def _ended(readers: Iterable[asyncio.Task[None]], timeout: float) -> None:
    if tasks := list(readers):
        await asyncio.wait(tasks, timeout=timeout)


class FollowedJob:
    """One job whose output is shown.

    Attributes:
        job: its record as last read.
        changed: set when there is a reason to read the job's log now.
        watchers: how many callers wait for the job and `note` its records.
        reader: the task that reads its log; it ends once the job has ended and all its output is shown.
    """

    def __init__(self, driver_log: DriverLog, job: JobRecord, found: bool) -> None:
        self.job = job
        self.changed = asyncio.Event()
        self.watchers = 0
        self._log = driver_log
        self._cursor = LogCursor(driver_log.core, job, job.attempt)
        self._passes_over = found and job.status == Status.RUNNING  # an earlier driver has shown the output so far
        self._read_at = float("-inf")
        self._display = LineDisplay(job.id, driver_log.core.clock, is_gang(job.spec))
        self.reader = start_task(self._read())

    def note(self, job: JobRecord) -> None:
        started = (job.status, job.attempt) != (self.job.status, self.job.attempt)
        self.job = job
        if started or job.stop is not None:
            self.changed.set()

    async def _read(self) -> None:
        """Read the job's log and pause, again and again, until the job has ended."""
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
            except Exception as error:
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
        """Show the output that is stored by now. Returns whether there was any."""
        if self._passes_over:
            await self._cursor.skip_to_last(job)
            self._passes_over = False
        now, count = self._log.core.clock.boottime(), 0
        since_read, self._read_at = now - self._read_at, now
        while (chunk := await self._cursor.next_chunk(job)) is not None:
            self._log.show(self._display.lines(chunk))
            count += 1
            if count == CHUNKS_AT_ONCE:
                self._display.is_partial = await self._cursor.skip_to_last(job)
            is_full = sum(len(line.data) for line in chunk) > CHUNK_BYTES // 2
            is_newest = since_read < _NO_TWO_CHUNKS and not is_full
            if not is_terminal(job) and (is_newest or count == CHUNKS_AT_ONCE):
                break
        return count > 0

    def _pauses(self, first: float) -> Iterator[float]:
        longest = _MAX_LOCAL_PAUSE if self._log.core.store.local else _MAX_PAUSE
        return backoff(min(first, longest), longest, _GROWTH)

    async def _pause(self, seconds: float) -> None:
        """Wait that many seconds, or until there is a reason to read."""
        if self._log.leaving or self.job.stop is not None:
            seconds = min(seconds, self._log.core.settings.poll_interval)
        notes_suffice = self.watchers and is_waiting(self.job)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.changed.wait(), None if notes_suffice else self._log.spread(seconds))


def _ends_with_driver(job: JobRecord) -> bool:
    """Whether a job that has not ended yet will end soon because this program ends."""
    is_owned = job.parent is not None and not job.parent.detached
    return job.status == Status.RUNNING and (is_owned or job.stop is not None)


class LineDisplay:
    """Prepares the lines of one job for a terminal: adds prefixes, escapes them, and limits their rate.

    Args:
        names_replicas: whether each line's prefix names the replica that wrote it.

    Attributes:
        is_partial: whether chunks were skipped between the last lines and the next ones.
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
        """The chunk's lines as they are shown, each with its stream's name. If there are too many, the last ones."""
        found = [(line, text) for line in chunk if (text := self._text(line)) is not None]
        limit = int(self._refilled())
        shown = found[max(0, len(found) - limit) :]
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
        """The text that a terminal would show in the end, such as the last state of a progress bar.

        None if the line is empty and only ends a line that was shown before it was complete.
        """
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
