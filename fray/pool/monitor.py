"""The driver's eyes on a pool with a queue: what its tasks have come to, and how its workers' jobs are."""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from fray.cluster.job_info import info_of
from fray.cluster.storage import StorageCluster
from fray.errors import JobFailed
from fray.pool import diagnosis
from fray.pool.dispatcher import PoolClosed
from fray.pool.future_table import FutureTable
from fray.queue.file_queue import FileQueue
from fray.types import JobId, JobInfo, JobStatus
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreError
from fray_coordinator.jobs.lookup import jobs_by_id
from fray_coordinator.jobs.polling import PollBackoff
from fray_coordinator.pool import task_outcomes, worker_pools
from fray_layouts.pool_records import TaskOutcome
from fray_layouts.queue_keys import TaskKeys

log = logging.getLogger("fray")

_TOUCH_INTERVAL = 86_400.0
"""Seconds between two notes of a driver that waits for nothing that it is still there."""
_DEAD_LETTER_INTERVAL = 5.0
"""Seconds between two looks at what outcomes do not tell: tasks that were given up, and the pool itself."""
_JOBS_MAX_AGE = 2.0
"""Seconds for which what is known of few jobs is good enough."""

JOB_READS_PER_SECOND = 10
"""Workers that are looked at in a second, whatever their number."""

MAX_FAILURES_PER_WORKER = 3
"""Times that each worker may fail, on average, while no task is done and none of them works; what kills its workers is
told apart before that."""

_UP_SECONDS = 60.0
"""Seconds after which a worker that still runs has come up."""


class PoolMonitor:
    """Looks for outcomes while tasks are unfinished, at growing intervals; asks for nothing otherwise.

    Args:
        jobs: ids of workers' jobs that may run already.
        on_gone: told when another driver has shut the pool down.
    """

    def __init__(
        self,
        cluster: StorageCluster,
        tasks: TaskKeys,
        queue: FileQueue[tuple[str, bytes, bytes]],
        ledger: FutureTable,
        jobs: Sequence[str],
        on_gone: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._queue = queue
        self._ledger = ledger
        self._on_gone = on_gone
        self._core = cluster.run(_core_itself)
        self._reader = task_outcomes.OutcomeReader(self._core, tasks)
        self._pace = PollBackoff(self._core)
        self._lock = threading.Lock()
        self._jobs = [JobId(job) for job in jobs]
        self._running: set[JobId] = set()
        self._failures = 0
        self._failed: JobInfo | None = None
        self._hopeless: JobInfo | None = None
        self._counted_at = float("-inf")
        self._ended = False
        self._work = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fray-pool", daemon=True)
        self._thread.start()

    # --- tasks

    def wake(self) -> None:
        """There is something to look for."""
        self._pace.expect_soon()
        self._work.set()

    def catch_up(self) -> None:
        """Learn what became of the tasks of earlier drivers."""
        self._look()
        self._read_letters()
        self.wake()

    def _look(self) -> bool:
        """Look now; whether there was something new."""
        found = self._cluster.run(lambda core: self._reader.look())
        self._take(found)
        return bool(found)

    def _watch(self) -> None:
        while not self._ended:
            idle = not self._work.wait(_TOUCH_INTERVAL)
            self._work.clear()
            try:
                if idle:
                    self._stay()
                self._look_until_done()
            except BaseException as error:  # callbacks of the users run here too, and nobody else would end the futures
                log.exception("outcomes cannot be read")
                self._ledger.fail_all(PoolClosed(f"its outcome cannot be read: {error}"))

    def _stay(self) -> None:
        """Note that this driver is there."""
        try:
            self._cluster.run(lambda core: worker_pools.touch(core, self._tasks))
        except StoreError as error:
            log.warning("the pool's record cannot be written now: %s", error)

    def _look_until_done(self) -> None:
        letters_at = time.monotonic() + _DEAD_LETTER_INTERVAL
        while self._ledger.unfinished and not self._ended:
            begin = time.monotonic()
            try:
                if self._look():
                    self._pace.reset()
                if begin > letters_at:
                    self._look_around()
                    letters_at = begin + _DEAD_LETTER_INTERVAL
            except StoreError as error:
                log.warning("outcomes cannot be read now: %s", error)
            self._rest(time.monotonic() - begin)
            if self._hopeless is not None:
                self._ledger.fail_all(JobFailed.of(self._hopeless))
                self._hopeless = None

    def _rest(self, look_took: float) -> None:
        """Wait until the next look; what was submitted meanwhile makes it come soon."""
        if self._work.wait(self._pace.next_pause(look_took)) and not self._ended:
            self._work.clear()
            time.sleep(self._pace.next_pause(look_took))

    def _look_around(self) -> None:
        if self._cluster.run(lambda core: worker_pools.exists(core, self._tasks)):
            self._read_letters()
        elif not self._ended:
            self._on_gone()

    def _read_letters(self) -> None:
        """Tasks that killed their workers are dead letters of the queue."""
        dead = [letter for letter in self._queue.letters(sys.maxsize) if letter.item is not None]
        self._take([TaskOutcome(letter.item[0], "dead", data=letter.reason.encode()) for letter in dead])

    def _take(self, found: Sequence[TaskOutcome]) -> None:
        before = self._ledger.unfinished
        self._ledger.take(found)
        if self._ledger.unfinished < before:
            self._failures = 0

    # --- workers

    def add_jobs(self, jobs: Sequence[JobId]) -> None:
        """More workers were started."""
        with self._lock:
            self._jobs.extend(jobs)
            self._counted_at = float("-inf")
        self._cluster.run(lambda core: worker_pools.note_jobs(core, self._tasks, jobs, ()))

    def end_jobs(self, count: int) -> None:
        """End so many workers; a task that one of them runs is given back if it does not end in time."""
        with self._lock:
            chosen = [self._jobs.pop() for _ in range(min(count, len(self._jobs)))]
        self._terminate(chosen)

    def forget_jobs(self) -> None:
        """The next driver need not know of those that run now."""
        self._cluster.run(lambda core: worker_pools.note_jobs(core, self._tasks, (), self._jobs))

    def count_jobs(self) -> tuple[int, int]:
        """How many workers run, and how many have not ended for good."""
        with self._lock:
            fresh_for = max(_JOBS_MAX_AGE, len(self._jobs) / JOB_READS_PER_SECOND)
            if time.monotonic() - self._counted_at > fresh_for:
                self._look_at_jobs()
                self._counted_at = time.monotonic()
            return len(self._running), len(self._jobs)

    def _look_at_jobs(self) -> None:
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
            self._hopeless = failed[-1]
            self._work.set()

    def await_jobs(self, count: int, timeout: float) -> None:
        """Block until so many workers run; raises builtin TimeoutError, JobFailed, PoolClosed."""
        deadline, pace = time.monotonic() + timeout, PollBackoff(self._core)
        while (running := self._now_running()) < count:
            if self._ledger.closed:
                raise PoolClosed(self._ledger.closed)
            if self._hopeless is not None:
                raise JobFailed.of(self._hopeless)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{running} of {count} workers run after {timeout:g} s; {self._absence()}")
            self._cluster.run(lambda core: pace.sleep())

    def _absence(self) -> str:
        """Why workers do not run, and what to do."""
        if missing := [job for job in self._jobs if job not in self._running]:
            return self._cluster.run(partial(diagnosis.explain_absence, jobs=missing))
        if self._failed is not None:
            return str(JobFailed.of(self._failed))
        return f"the pool wants no more than {len(self._jobs)}: resize it"

    def end(self) -> None:
        """End all workers; returns at once."""
        self._ended = True
        self._work.set()
        self._terminate(self._jobs)

    def _now_running(self) -> int:
        with self._lock:
            self._counted_at = float("-inf")
        return self.count_jobs()[0]

    def _terminate(self, jobs: Sequence[JobId]) -> None:
        for job in jobs:
            self._cluster.terminate(job)


async def _core_itself(core: Core) -> Core:
    return core
