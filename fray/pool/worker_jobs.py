"""The worker jobs of a pool: which run, why others do not, and whether still others would fare better."""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from fray.cluster import log_printer
from fray.cluster.job_info import exit_reason, info_of
from fray.cluster.storage import StorageCluster
from fray.errors import JobFailed
from fray.types import JobId, JobInfo, JobStatus
from fray.wait_line import above_line, wait_telling
from fray_coordinator.backoff import WARN_AFTER, backoff
from fray_coordinator.core import Core
from fray_coordinator.jobs.lookup import jobs_by_id, live_agents, read_jobs, refreshed_agents
from fray_coordinator.jobs.waiting import PollBackoff
from fray_coordinator.jobs.why_in_reservation import reservations_around
from fray_coordinator.jobs.why_machines import machines_for
from fray_coordinator.jobs.why_waiting import reasons_by_job
from fray_coordinator.pool import worker_pools
from fray_coordinator.protocol.transitions import is_waiting
from fray_layouts.queue_keys import TaskKeys
from fray_layouts.records import JobRecord

log = logging.getLogger("fray")

_MAX_AGE = 2.0
"""Seconds for which what is known of few workers is good enough: the size of a pool changes as slowly."""

READS_PER_SECOND = 10
"""Workers whose records are read in a second, so that a large pool costs no more requests than a small one."""

MAX_FAILURES_PER_WORKER = 3
"""Times that each worker may fail, on average, while no task is done and none of them works. A task that kills its
workers is a dead letter before that."""

_UP_SECONDS = 60.0
"""Seconds after which a worker that still runs counts as up: by then it has imported what it needs."""


class WorkerJobs:
    """The driver's view of its workers' jobs; may be used by many threads.

    Attributes:
        absence: why workers are missing.

    Args:
        core: the cluster's.
        name: the pool's, for people.
        jobs: ids of worker jobs that may run already.
        on_hopeless: called with the last failure once workers have failed so often that others would fail, too.
    """

    def __init__(
        self,
        cluster: StorageCluster,
        core: Core,
        name: str,
        tasks: TaskKeys,
        jobs: Sequence[str],
        on_hopeless: Callable[[JobFailed], None],
    ) -> None:
        self.absence = AbsenceWatch(cluster, name)
        self._cluster = cluster
        self._core = core
        self._tasks = tasks
        self._on_hopeless = on_hopeless
        self._lock = threading.Lock()
        self._jobs = [JobId(job) for job in jobs]
        self._running: set[JobId] = set()
        self._failures = 0
        self._failed: JobInfo | None = None
        self._read_at = float("-inf")

    def add(self, jobs: Sequence[JobId]) -> None:
        """Note that these workers were started."""
        with self._lock:
            self._jobs.extend(jobs)
            self._read_at = float("-inf")
        self._cluster.run(lambda core: worker_pools.note_jobs(core, self._tasks, jobs, ()))

    def shrink(self, count: int) -> None:
        """End so many workers; a task that one of them runs is given back if it does not end in time."""
        with self._lock:
            chosen = [self._jobs.pop() for _ in range(min(count, len(self._jobs)))]
        self._terminate(chosen)

    def end(self) -> None:
        self.absence.end()
        self._terminate(self._jobs)

    def forget(self) -> None:
        """Remove the workers from the pool's record: the next driver need not know of them."""
        self._cluster.run(lambda core: worker_pools.note_jobs(core, self._tasks, (), self._jobs))

    def count(self) -> tuple[int, int]:
        """How many workers run, and how many have not ended for good."""
        with self._lock:
            if time.monotonic() - self._read_at > max(_MAX_AGE, len(self._jobs) / READS_PER_SECOND):
                self._read()
                self._read_at = time.monotonic()
                self.absence.look(len(self._running), self._missing())
            return self.last_count()

    def last_count(self) -> tuple[int, int]:
        """`count` as last read, without a request."""
        return len(self._running), len(self._jobs)

    def note_progress(self) -> None:
        """Note that a task is done: earlier failures of workers count no more."""
        self._failures = 0

    def await_running(self, count: int, timeout: float, check: Callable[[], None]) -> None:
        """Block until so many workers run. Raises the builtin TimeoutError, and what `check` raises between looks."""
        pace = PollBackoff(self._core)

        def have_come(within: float) -> bool:
            until = time.monotonic() + within
            while self._count_now() < count:
                check()
                if (left := until - time.monotonic()) <= 0:
                    return False
                self._cluster.run(lambda core: pace.sleep(at_most=left))
            return True

        if not wait_telling(have_come, timeout, lambda: f"{self.last_count()[0]} of {count} workers run"):
            running = self.last_count()[0]
            raise TimeoutError(f"{running} of {count} workers run after {timeout:g} s; {self._explain_absence()}")

    def _count_now(self) -> int:
        with self._lock:
            self._read_at = float("-inf")
        return self.count()[0]

    def _read(self) -> None:
        found = self._cluster.run(lambda core: jobs_by_id(core, self._jobs, problems={}))
        known = [info_of(self._cluster.root, job) for job in found.values() if job is not None]
        running = [job for job in known if job.status is JobStatus.RUNNING]
        failed = [job for job in known if job.status is JobStatus.FAILED]
        limit = MAX_FAILURES_PER_WORKER * (len(self._jobs) + 1)
        ended = found.keys() - {job.job_id for job in known if not job.status.finished()}
        self._jobs = [job for job in self._jobs if job not in ended]
        self._running = (self._running - found.keys()) | {job.job_id for job in running}
        self._failed = failed[-1] if failed else self._failed
        if ended:
            self._cluster.run(lambda core: worker_pools.note_jobs(core, self._tasks, (), ended))
        works = any(self._core.now() - (job.start_time or math.inf) > _UP_SECONDS for job in running)
        self._failures = 0 if works else self._failures + len(failed)
        if failed and self._failures >= limit:
            self._on_hopeless(JobFailed.of(failed[-1]))

    def _explain_absence(self) -> str:
        """Why workers do not run, and what to do."""
        if missing := self._missing():
            return self._cluster.run(partial(explain_absence, jobs=missing))
        if self._failed is not None:
            return str(JobFailed.of(self._failed))
        return f"the pool wants no more than {len(self._jobs)}: resize it"

    def _missing(self) -> list[JobId]:
        return [job for job in self._jobs if job not in self._running]

    def _terminate(self, jobs: Sequence[JobId]) -> None:
        for job in jobs:
            self._cluster.terminate(job)


_EXPLAIN_PAUSES = 30.0, 600.0
"""Seconds between two explanations of why workers are missing, the first and the longest: each reads every agent's
record."""


_MAX_EXPLAINED = 50
"""Missing workers whose records an explanation reads: the others wait for the same."""


class AbsenceWatch:
    """Says why a pool lacks workers: after two seconds, then ever more rarely, in the log and in `why`."""

    def __init__(self, cluster: StorageCluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self.why = ""
        self._explained: set[str] = set()
        self._pauses = backoff(*_EXPLAIN_PAUSES)
        self._due = time.monotonic() + WARN_AFTER

    def look(self, up: int, missing: Sequence[str]) -> None:
        """Take note of how many workers are up, and of the jobs of those that are not."""
        if not missing:
            self.end()
            self.why = ""
            self._pauses = backoff(*_EXPLAIN_PAUSES)
            self._due = time.monotonic() + WARN_AFTER
        elif time.monotonic() >= self._due:
            self._due = time.monotonic() + next(self._pauses)
            self._explained = set(missing)
            self.why = self._cluster.run(partial(self._explain, jobs=missing[:_MAX_EXPLAINED]))
            text = f"pool {self._name}: {up} of {up + len(missing)} workers are up: {self.why}"
            log_printer.printer.tell(self, partial(_warn, text))
        elif self._explained != set(missing):
            self.why = ""

    def end(self) -> None:
        """Wait for no worker any more, and so for no machine."""
        if self._explained:
            self._explained = set()
            self._cluster.run(self._end)

    async def _explain(self, core: Core, jobs: Sequence[str]) -> str:
        scaler = await self._cluster.scaler()
        return await explain_absence(core, jobs, partial(scaler.begin, self))

    async def _end(self, core: Core) -> None:
        await (await self._cluster.scaler()).end(self)


_END_PATIENCE, _END_AGE = 5.0, 3.0
"""Seconds for a lost worker's agent to write how it ended; an end that was written longer ago is of an earlier one."""


async def last_words(core: Core, job: JobId) -> str:
    """How the worker with this job, which was just lost, has ended; "" if that is not known in time."""
    pace, since, until = PollBackoff(core), core.now() - _END_AGE, core.clock.boottime() + _END_PATIENCE
    while core.clock.boottime() < until:
        found = (await jobs_by_id(core, [job], problems={})).get(job)
        if found is None:
            return ""
        if found.exit is not None:
            return f"{exit_reason(found.exit)} (`fray logs {job}`)"
        if found.history and found.history[-1].ended_at >= since:
            return f"{exit_reason(found.history[-1].exit)} (`fray logs {job}`)"
        await pace.sleep(at_most=0.5)
    return ""


def _warn(text: str) -> None:
    with above_line():
        log.warning("%s", text)


_MAX_REASONS = 3
"""Reasons in one message, those of most workers first: more would hide what to do."""


async def explain_absence(core: Core, jobs: Sequence[str], on_machines: Callable[[], None] = lambda: None) -> str:
    """Why the workers with these jobs are missing, and what to do about it; "" if there are none.

    on_machines: called if they wait in a pool that may have machines.
    """
    records = await read_jobs(core, jobs, problems={})
    live = live_agents(await refreshed_agents(core), core.now())
    around = await reservations_around(core, records)
    machines = await machines_for(core, records, around)
    if machines:
        on_machines()
    waiting = reasons_by_job(filter(is_waiting, records), live, core.now(), around, machines)
    states = Counter(_state(core, job, waiting.get(job.id, "")) for job in records)
    reasons = [f"{count} {text}" for text, count in states.most_common(_MAX_REASONS)]
    return "; ".join([*reasons, f"`fray status {records[0].id}` tells more"]) if records else ""


def _state(core: Core, job: JobRecord, why_waiting: str) -> str:
    """The state of a missing worker's job, with the reason."""
    status = info_of(core.root, job).status
    if why_waiting:
        return f"{status} ({why_waiting})"
    if job.exit is not None:
        return f"{status} ({exit_reason(job.exit)})"
    last = job.history[-1] if job.history else None
    before = f" (attempt {last.attempt} ended: {exit_reason(last.exit)})" if last is not None else ""
    return f"{status} and cannot be called yet{before}"
