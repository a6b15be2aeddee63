"""The monitor of a pool with a queue: reads the outcomes of its tasks, and notices if another driver shuts it down."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence

from fray.cluster.storage import StorageCluster
from fray.errors import JobFailed
from fray.pool.dispatcher import PoolClosed
from fray.pool.future_table import FutureTable
from fray.pool.worker_jobs import WorkerJobs
from fray.queue.file_queue import FileQueue
from fray_coordinator import worker_pools
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreError
from fray_coordinator.jobs.waiting import PollBackoff
from fray_layouts.queue_keys import TaskKeys
from fray_layouts.queue_records import OutcomeKind, TaskOutcome
from fray_runtime.threads import start_loop

log = logging.getLogger("fray")

_TOUCH_INTERVAL = 86_400.0
"""Seconds after which an idle driver writes to the pool's record that it is alive. Unused pools are kept for longer."""
_DEAD_LETTER_INTERVAL = 5.0
"""Seconds between two checks for tasks that were given up, and for a pool that was shut down. Outcomes do not show
these cases, and both are rare."""


class PoolMonitor:
    """Polls for outcomes at growing intervals while tasks are unfinished. It makes no requests at other times.

    Attributes:
        workers: the pool's worker jobs.

    Args:
        name: the pool's name, for messages.
        jobs: ids of worker jobs that may run already.
        on_gone: called when another driver has shut down the pool.
    """

    def __init__(
        self,
        cluster: StorageCluster,
        name: str,
        tasks: TaskKeys,
        queue: FileQueue[tuple[str, bytes, bytes]],
        table: FutureTable,
        jobs: Sequence[str],
        on_gone: Callable[[], None],
    ) -> None:
        core = cluster.run(_core_itself)
        self.workers = WorkerJobs(cluster, core, name, tasks, jobs, self._give_up)
        self._cluster = cluster
        self._tasks = tasks
        self._queue = queue
        self._table = table
        self._on_gone = on_gone
        self._reader = worker_pools.OutcomeReader(core, tasks)
        self._pace = PollBackoff(core)
        self._hopeless: JobFailed | None = None
        self._ended = False
        self._work = threading.Event()
        start_loop(self._run, "fray-pool")

    def wake(self) -> None:
        self._pace.expect_soon()
        self._work.set()

    def catch_up(self) -> None:
        """Read the outcomes of earlier drivers' tasks."""
        self._poll()
        self._read_dead_letters()
        self.wake()

    def await_workers(self, count: int, timeout: float) -> None:
        """Block until `count` workers run. Raises the builtin TimeoutError, JobFailed or PoolClosed."""
        self.workers.await_running(count, timeout, self._check)

    def end(self) -> None:
        self._ended = True
        self._work.set()
        self.workers.end()

    def _check(self) -> None:
        if self._table.closed:
            raise PoolClosed(self._table.closed)
        if self._hopeless is not None:
            raise self._hopeless

    def _give_up(self, failure: JobFailed) -> None:
        self._hopeless = failure
        self._work.set()

    def _run(self) -> None:
        while not self._ended:
            idle = not self._work.wait(_TOUCH_INTERVAL)
            self._work.clear()
            try:
                if idle:
                    self._touch()
                self._poll_until_done()
            except BaseException as error:  # users' callbacks run here too; without this the futures would never end
                log.exception("outcomes of tasks cannot be read")
                self._table.fail_all(PoolClosed(f"the task's outcome cannot be read: {error}"))

    def _touch(self) -> None:
        """Write to the pool's record that this driver is alive."""
        try:
            self._cluster.run(lambda core: worker_pools.touch(core, self._tasks))
        except StoreError as error:
            log.warning("the pool's record cannot be written now: %s", error)

    def _poll_until_done(self) -> None:
        check_at = time.monotonic() + _DEAD_LETTER_INTERVAL
        while self._table.unfinished and not self._ended:
            begin = time.monotonic()
            try:
                if self._poll():
                    self._pace.reset()
                if begin > check_at:
                    self._check_pool()
                    check_at = begin + _DEAD_LETTER_INTERVAL
            except StoreError as error:
                log.warning("outcomes of tasks cannot be read now, and are read again soon: %s", error)
            self._rest(time.monotonic() - begin)
            if self._hopeless is not None:
                self._table.fail_all(self._hopeless)
                self._hopeless = None

    def _poll(self) -> bool:
        """Read and apply new outcomes. Returns whether there were any."""
        found = self._cluster.run(lambda core: self._reader.poll())
        self._apply(found)
        return bool(found)

    def _rest(self, poll_took: float) -> None:
        """Wait until the next poll. If tasks are submitted meanwhile, it comes soon."""
        if self._work.wait(self._pace.next_pause(poll_took)) and not self._ended:
            self._work.clear()
            time.sleep(self._pace.next_pause(poll_took))

    def _check_pool(self) -> None:
        if self._cluster.run(lambda core: worker_pools.exists(core, self._tasks)):
            self._read_dead_letters()
        elif not self._ended:
            self._on_gone()

    def _read_dead_letters(self) -> None:
        """End the tasks that killed their workers; the queue has them as dead letters."""
        dead = [letter for letter in self._queue.letters(sys.maxsize) if letter.item is not None]
        self._apply(
            [TaskOutcome(letter.item[0], OutcomeKind.DEAD_LETTER, data=letter.reason.encode()) for letter in dead]
        )

    def _apply(self, found: Sequence[TaskOutcome]) -> None:
        before = self._table.unfinished
        self._table.apply(found)
        if self._table.unfinished < before:
            self.workers.note_progress()


async def _core_itself(core: Core) -> Core:
    return core
