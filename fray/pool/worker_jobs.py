"""The worker jobs of a pool with a queue: how many run, and whether it makes sense to start others after failures."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from fray.cluster.job_info import info_of
from fray.cluster.storage import StorageCluster
from fray.errors import JobFailed
from fray.pool.diagnosis import AbsenceWatch, explain_absence
from fray.types import JobId, JobInfo, JobStatus
from fray.wait_line import wait_with_progress
from fray_coordinator import worker_pools
from fray_coordinator.core import Core
from fray_coordinator.jobs.lookup import jobs_by_id
from fray_coordinator.jobs.waiting import PollBackoff
from fray_layouts.queue_keys import TaskKeys

_MAX_AGE = 2.0
"""Seconds for which the counts of a small pool are used before they are read again. A pool's size changes as slowly."""

READS_PER_SECOND = 10
"""Workers' records that are read per second at most, so that a large pool costs no more requests than a small one."""

MAX_FAILURES_PER_WORKER = 3
"""Average failures per worker at which the pool is hopeless, if no task is done and no worker stays up meanwhile. A
task that kills its workers becomes a dead letter before that."""

_UP_SECONDS = 60.0
"""Seconds after which a running worker counts as up: by then it has imported what it needs."""


class WorkerJobs:
    """The driver's view of its workers' jobs. It may be used by many threads.

    Attributes:
        absence: finds out why workers are missing.

    Args:
        core: the open cluster.
        name: the pool's name, for messages.
        jobs: ids of worker jobs that may run already.
        on_hopeless: called with the last failure once workers have failed so often that others would fail too.
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
        self._ended = False
        self._failures = 0
        self._failed: JobInfo | None = None
        self._read_at = float("-inf")

    def add(self, jobs: Sequence[JobId]) -> None:
        """Add workers that were started. If the pool has ended meanwhile, they are ended."""
        with self._lock:
            self._jobs.extend(jobs)
            self._read_at = float("-inf")
            ended = self._ended
        self._cluster.run(lambda core: worker_pools.note_jobs(core, self._tasks, jobs, ()))
        if ended:
            self._terminate(jobs)

    def shrink(self, count: int) -> None:
        """End `count` workers. If a worker's task does not end in time, it is given back."""
        with self._lock:
            chosen = [self._jobs.pop() for _ in range(min(count, len(self._jobs)))]
        self._terminate(chosen)

    def end(self) -> None:
        with self._lock:
            self._ended = True
            jobs = list(self._jobs)
        self.absence.end()
        self._terminate(jobs)

    def forget(self) -> None:
        """Remove the workers from the pool's record, so that the next driver does not count them."""
        self._cluster.run(lambda core: worker_pools.note_jobs(core, self._tasks, (), self._jobs))

    def count(self) -> tuple[int, int]:
        """The number of workers that run, and the number of those that have not ended for good."""
        with self._lock:
            if time.monotonic() - self._read_at > max(_MAX_AGE, len(self._jobs) / READS_PER_SECOND):
                self._read()
                self._read_at = time.monotonic()
                self.absence.observe(len(self._running), self._missing())
            return self.last_count()

    def last_count(self) -> tuple[int, int]:
        """The last result of `count`, without a request."""
        return len(self._running), len(self._jobs)

    def note_progress(self) -> None:
        """Note that a task is done, so that earlier failures of workers no longer count."""
        self._failures = 0

    def await_running(self, count: int, timeout: float, check: Callable[[], None]) -> None:
        """Block until `count` workers run. Raises the builtin TimeoutError, and what `check` raises between polls."""
        pace = PollBackoff(self._core)

        def are_running(within: float) -> bool:
            until = time.monotonic() + within
            while self._count_now() < count:
                check()
                if (left := until - time.monotonic()) <= 0:
                    return False
                self._cluster.run(lambda core: pace.sleep(at_most=left))
            return True

        if not wait_with_progress(are_running, timeout, lambda: f"{self.last_count()[0]} of {count} workers run"):
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
        """The reason why workers do not run, and what to do."""
        if missing := self._missing():
            return self._cluster.run(partial(explain_absence, jobs=missing))
        if self._failed is not None:
            return str(JobFailed.of(self._failed))
        return f"the pool is to have only {len(self._jobs)}: resize it"

    def _missing(self) -> list[JobId]:
        return [job for job in self._jobs if job not in self._running]

    def _terminate(self, jobs: Sequence[JobId]) -> None:
        for job in jobs:
            self._cluster.terminate(job)
