"""Reads and follows the logs of jobs. Followers ask for the next chunk by number and never list.

Each replica of a gang has its own log; when they are read together, their lines are merged by time. Of a log above the
job's `log_limit`, the agent deletes chunks of the middle. A reader that misses a chunk behind the first part lists the
later ones and goes on there, with a line that says what is left out.
"""

import heapq
import math
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, replace

from fray_coordinator.concurrency import MAX_CONCURRENT_FOR_PEOPLE, map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.jobs.lookup import check_replica
from fray_coordinator.jobs.waiting import ActivityReports, PollBackoff, WaitingReasons, WatchedJobs
from fray_coordinator.protocol.transitions import is_terminal, is_waiting
from fray_layouts.records import JobRecord
from fray_layouts.spec import is_gang
from fray_layouts.units import format_bytes
from fray_layouts.work_keys import WorkKeys


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a job's output, or a piece of a long one; `str` gives its text.

    Attributes:
        time: RFC 3339, UTC, microseconds.
        stream: "stdout" or "stderr".
        data: without its newline.
        complete: a newline followed; if not, the stream's next line continues this one.
    """

    attempt: int
    replica: int
    time: str
    stream: str
    data: bytes
    complete: bool

    def __str__(self) -> str:
        return self.data.decode(errors="replace")


class LogCursor:
    """A reader's position in a job's log, which continues through all attempts from `attempt` on.

    Args:
        job: the job whose log is read.
        replica: of a gang, the only one to read; None reads all.

    Attributes:
        has_read: whether it has found any chunk.
    """

    def __init__(self, core: Core, job: JobRecord, attempt: int = 1, replica: int | None = None) -> None:
        self._replicas = [_ReplicaCursor(core, job.id, each, attempt) for each in _chosen(job, replica)]

    @property
    def has_read(self) -> bool:
        return any(cursor.number > 1 for cursor in self._replicas)

    async def next_chunk(self, job: JobRecord) -> list[LogLine] | None:
        """Read each replica's next chunk. job: the record as last read; None: by that record, there is none yet.

        Raises BadRecord: a chunk is not in the log format.
        """
        found = await map_concurrently(self._replicas, lambda cursor: cursor.next_chunk(job), MAX_CONCURRENT_FOR_PEOPLE)
        chunks = [chunk for chunk in found if chunk is not None]
        return _merged(chunks) if chunks else None

    async def skip_to_last(self, job: JobRecord) -> bool:
        """Move to the last stored chunks of this attempt; returns whether any chunk was passed over.

        Costs one list for each replica.
        """
        skipped = await map_concurrently(
            self._replicas, lambda cursor: cursor.skip_to_last(job), MAX_CONCURRENT_FOR_PEOPLE
        )
        return any(skipped)


@dataclass(slots=True)
class _ReplicaCursor:
    """A reader's position in the log of one replica.

    Attributes:
        attempt, number: of the chunk to read next.
        size: bytes of the attempt's chunks that were read.
    """

    core: Core
    job_id: str
    replica: int
    attempt: int
    number: int = 1
    size: int = 0

    async def next_chunk(self, job: JobRecord) -> list[LogLine] | None:
        while True:
            if (found := await self.next_of_attempt(job)) is not None:
                return found
            if self.attempt >= job.attempt:
                return None
            self.attempt, self.number, self.size = self.attempt + 1, 1, 0

    async def next_of_attempt(self, job: JobRecord) -> list[LogLine] | None:
        """The attempt's next chunk, behind a line about the chunks before it that were deleted; None: there is none."""
        if self.number > _chunks_written(job, self.attempt):
            return None
        data = await self._stored()
        missing = 0
        if data is None and self.size >= first_part(job.spec.log_limit) - LARGEST_CHUNK:
            later = await self._later_numbers(limit=1)
            missing, self.number = (later[0] - self.number, later[0]) if later else (0, self.number)
            data = await self._stored() if later else None
        if data is None:
            return None
        lines = parse_chunk(self._key(), data, self.attempt, self.replica)
        self.number += 1
        self.size += len(data)
        return [_left_out(missing, job.spec.log_limit, lines[0]), *lines] if missing and lines else lines

    async def skip_to_last(self, job: JobRecord) -> bool:
        numbers = await self._later_numbers()
        self.number = max([self.number, *numbers])
        return bool(numbers)

    async def _stored(self) -> bytes | None:
        found = await self.core.store.get(self._key())
        return found.data if found is not None else None

    async def _later_numbers(self, limit: int | None = None) -> list[int]:
        prefix = WorkKeys.log_prefix(self.job_id, self.attempt, self.replica)
        rows = await self.core.store.list(prefix, after=self._key(), limit=limit)
        return [number for row in rows if (number := WorkKeys.parse_log(row.key)) is not None]

    def _key(self) -> str:
        return WorkKeys.log(self.job_id, self.attempt, self.replica, self.number)


LARGEST_CHUNK = 512 * 1024
"""Bytes of the largest chunk that agents store. The first part of a log is short of its bound by less than that."""


def first_part(log_limit: int) -> int:
    """Bytes from the begin of a log that are kept, however large it becomes."""
    return log_limit // 2


def may_lack_middle(log_limit: int, count: int) -> bool:
    """Whether a log of `count` chunks may be above its limit, so that chunks of its middle were deleted."""
    return count * LARGEST_CHUNK > log_limit


def _left_out(count: int, limit: int, following: LogLine) -> LogLine:
    """The line that stands for the `count` chunks which were deleted before the line `following`."""
    why = f"the log has more than the {format_bytes(limit)} that log_limit keeps"
    text = f"fray: {count:,} chunks of output are left out here: {why}"
    return replace(following, stream="stderr", data=text.encode(), complete=True)


def _chosen(job: JobRecord, replica: int | None) -> Iterable[int]:
    """The replicas whose logs are read. Raises InvalidInput: there is no such replica."""
    if replica is None:
        return range(job.spec.replicas)
    check_replica(job, replica)
    return [replica]


def _merged(chunks: list[list[LogLine]]) -> list[LogLine]:
    """The lines of several replicas, merged by time; each replica's own order is kept."""
    return list(heapq.merge(*chunks, key=lambda line: line.time))


async def follow_chunks(
    core: Core,
    job_id: str,
    on_waiting: Callable[[JobRecord, str], None] | None = None,
    replica: int | None = None,
    on_machines: Callable[[], None] = lambda: None,
) -> AsyncGenerator[list[LogLine], None]:
    """The job's log, chunk by chunk, through all its attempts until the job has ended and everything was read.

    Args:
        on_waiting: called with a job whose task has not started, and the reason or its agent's present activity.
        replica: of a gang, the only one whose log is read.
        on_machines: as in `wait_for`; called only if there is an `on_waiting`.

    Raises:
        JobNotFound, JobGone: as `wait_for`.
        InvalidInput: there is no such replica.
    """
    watched, pace, reasons = WatchedJobs(core, [job_id]), PollBackoff(core), WaitingReasons(core, on_machines)
    activity = ActivityReports(core)
    cursor: LogCursor | None = None
    while True:
        if await watched.poll():
            pace.reset()
        job = watched.known[job_id].record
        cursor = cursor or LogCursor(core, job, replica=replica)
        while (chunk := await cursor.next_chunk(job)) is not None:
            yield chunk
            pace.reset()
        if is_terminal(job):
            return
        if on_waiting is not None and (why := await reasons.update([job])):
            on_waiting(job, why)
        if on_waiting is not None and not cursor.has_read and (doing := await activity.update(job)):
            on_waiting(job, doing)
        await pace.sleep()


async def read_logs(
    core: Core, job: JobRecord, max_lines: int | None = None, replica: int | None = None
) -> list[LogLine]:
    """The output of the current attempt (of the last one, if the job has ended) so far; at most its last `max_lines`.

    If the attempt has not started, the output is that of the latest earlier attempt that printed anything.

    Args:
        replica: of a gang, the only one whose log is read.

    Raises:
        InvalidInput: there is no such replica.
    """
    replicas = _chosen(job, replica)
    lines = await _read_attempt(core, job, job.attempt, replicas, max_lines)
    if lines or (job.started_at is not None and job.not_before <= core.now()):
        return lines
    for past in reversed(job.history):
        if lines := await _read_attempt(core, job, past.attempt, replicas, max_lines):
            break
    return lines


async def _read_attempt(
    core: Core, job: JobRecord, attempt: int, replicas: Iterable[int], max_lines: int | None
) -> list[LogLine]:
    found = await map_concurrently(
        replicas, lambda replica: _read_replica(core, job, attempt, replica, max_lines), MAX_CONCURRENT_FOR_PEOPLE
    )
    lines = _merged(found)
    return lines if max_lines is None else lines[max(len(lines) - max_lines, 0) :]


async def _read_replica(core: Core, job: JobRecord, attempt: int, replica: int, max_lines: int | None) -> list[LogLine]:
    count = _chunks_written(job, attempt)
    if max_lines is not None and count != math.inf:
        return await _read_tail(core, job, attempt, int(count), max_lines)
    lines: deque[LogLine] = deque(maxlen=max_lines)
    cursor = _ReplicaCursor(core, job.id, replica, attempt)
    while (chunk := await cursor.next_of_attempt(job)) is not None:
        lines.extend(chunk)
    return list(lines)


async def _read_tail(core: Core, job: JobRecord, attempt: int, count: int, max_lines: int) -> list[LogLine]:
    lines: list[LogLine] = []
    for number in range(count, 0, -1):
        if len(lines) >= max_lines:
            break
        chunk = await _ReplicaCursor(core, job.id, 0, attempt, number).next_of_attempt(job)
        if chunk is None:
            break  # it was deleted, and the chunks before it too
        lines = [*chunk, *lines]
    return lines


_HEADER = re.compile(rb"([0-9TZ:.-]+) (stdout|stderr) ([FPL]) ")


def parse_chunk(key: str, data: bytes, attempt: int, replica: int) -> list[LogLine]:
    """Parse a chunk of a replica's output into lines. Raises BadRecord, which names `key`: it is not in the format."""
    lines: list[LogLine] = []
    start = 0
    while start < len(data):
        header = _HEADER.match(data, start)
        end = data.find(b"\n", start) % (len(data) + 1)  # the last line's newline may be missing
        if header is None or end < header.end():
            raise BadRecord(f"{key} holds a line that is not in the log format: {data[start : start + 80]!r}")
        time, stream, tag = (part.decode() for part in header.groups())
        content = data[header.end() : end]
        start = end + 1
        if tag != "L":
            lines.append(LogLine(attempt, replica, time, stream, content, tag == "F"))
            continue
        block = data[start : start + _block_length(content)]
        if not block.endswith(b"\n") or len(block) != _block_length(content):
            raise BadRecord(f"{key} holds lines that are not in the log format: {data[header.start() :][:80]!r}")
        lines += [LogLine(attempt, replica, time, stream, line, True) for line in block[:-1].split(b"\n")]
        start += len(block)
    return lines


def _block_length(text: bytes) -> int:
    """Bytes of a block of lines, by its header; 0 if that is not in the format."""
    return int(text) if text.isdigit() and len(text) < 10 else 0


def _chunks_written(job: JobRecord, attempt: int) -> float:
    """The largest number of chunks of an attempt: that of its exit once it has ended, 0 before it runs.

    It is unknown for a gang, whose stored exit is that of one replica.
    """
    past = {earlier.attempt: earlier.exit for earlier in job.history}
    end = job.exit if attempt == job.attempt else past.get(attempt)
    if attempt == job.attempt and is_waiting(job):
        return 0
    return math.inf if end is None or end.log_chunks is None or is_gang(job.spec) else end.log_chunks
