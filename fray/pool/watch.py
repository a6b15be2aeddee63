"""The driver's eyes on a pool with a queue: what its tasks have come to, and how its workers' jobs are."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from fray.cluster.storage import StorageCluster
from fray.pool.ledger import Ledger
from fray.queue import FileQueue
from fray.types import JobId, JobStatus
from fray_coordinator import outcomes, pools
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, StoreUnavailable
from fray_layouts.queue_names import Tasks
from fray_layouts.tasks import Outcome

log = logging.getLogger("fray")

_FIRST_PAUSE = 0.005
_BACKOFF = 1.5
_LETTERS_EVERY = 5.0
_JOBS_EVERY = 2.0
"""Seconds for which what is known of the jobs is good enough."""


class Watch:
    """Looks for outcomes while tasks are unfinished, at growing intervals; asks for nothing otherwise.

    Args:
        jobs: ids of workers' jobs that may run already.
    """

    def __init__(
        self,
        cluster: StorageCluster,
        tasks: Tasks,
        queue: FileQueue[tuple[str, bytes]],
        ledger: Ledger,
        jobs: Sequence[str],
    ) -> None:
        core = cluster.run(_itself)
        self._cluster = cluster
        self._tasks = tasks
        self._queue = queue
        self._ledger = ledger
        self._reader = outcomes.Reader(core, tasks)
        self._local = core.store.local
        self._longest = core.settings.poll_interval
        self._lock = threading.Lock()
        self._jobs = [JobId(job) for job in jobs]
        self._running = 0
        self._counted_at = float("-inf")
        self._ended = False
        self._work = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fray-pool", daemon=True)

    # --- tasks

    def wake(self) -> None:
        """There is something to look for."""
        self._work.set()
        with self._lock:
            if self._thread.ident is None:
                self._thread.start()

    def look(self) -> bool:
        """Look now; whether there was something new."""
        found = self._cluster.run(lambda core: self._reader.look())
        self._ledger.take(found)
        return bool(found)

    def _watch(self) -> None:
        while not self._ended:
            self._work.wait()
            self._work.clear()
            try:
                self._look_until_done()
            except BadRecord as error:
                self._ledger.fail_all(str(error))

    def _look_until_done(self) -> None:
        pause, letters_at = _FIRST_PAUSE, time.monotonic() + _LETTERS_EVERY
        while self._ledger.unfinished and not self._ended:
            try:
                pause = _FIRST_PAUSE if self.look() else min(pause * _BACKOFF, self._longest)
                if time.monotonic() > letters_at:
                    self._read_letters()
                    letters_at = time.monotonic() + _LETTERS_EVERY
            except StoreUnavailable as error:
                log.warning("outcomes cannot be read now: %s", error)
            time.sleep(pause if self._local else max(pause, self._longest / 4))

    def _read_letters(self) -> None:
        """Tasks that killed their workers are dead letters of the queue."""
        dead = [letter for letter in self._queue.letters() if letter.item is not None]
        self._ledger.take([Outcome(letter.item[0], "dead", data=letter.reason.encode()) for letter in dead])

    # --- workers

    def add_jobs(self, jobs: Sequence[JobId]) -> None:
        """More workers were started."""
        with self._lock:
            self._jobs.extend(jobs)
            self._counted_at = float("-inf")
        self._cluster.run(lambda core: pools.note_jobs(core, self._tasks, jobs, ()))

    def end_jobs(self, count: int) -> None:
        """End so many workers; a task that one of them runs is given back if it does not end in time."""
        with self._lock:
            chosen = [self._jobs.pop() for _ in range(min(count, len(self._jobs)))]
        self._terminate(chosen)

    def count_jobs(self) -> tuple[int, int]:
        """How many workers run, and how many have not ended for good."""
        with self._lock:
            if time.monotonic() - self._counted_at > _JOBS_EVERY:
                statuses = {job: self._cluster.poll(job).status for job in self._jobs}
                ended = {job for job, status in statuses.items() if status.finished()}
                self._jobs = [job for job in self._jobs if job not in ended]
                self._running = sum(status is JobStatus.RUNNING for status in statuses.values())
                self._counted_at = time.monotonic()
                if ended:
                    self._cluster.run(lambda core: pools.note_jobs(core, self._tasks, (), ended))
            return self._running, len(self._jobs)

    def await_jobs(self, count: int, timeout: float) -> None:
        """Block until so many workers run; raises builtin TimeoutError."""
        deadline, pause = time.monotonic() + timeout, _FIRST_PAUSE
        while (running := self._now_running()) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{running} of {count} workers run after {timeout:g} s; see their jobs")
            time.sleep(pause)
            pause = min(pause * _BACKOFF, max(self._longest, 0.1))

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


async def _itself(core: Core) -> Core:
    return core
