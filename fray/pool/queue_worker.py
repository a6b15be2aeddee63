"""The worker of a pool with a queue: takes tasks, runs them, writes their outcomes, and then completes them.

The order matters: a task whose outcome is not in storage must come back and run again elsewhere.
"""

import functools
import inspect
import logging
import os
import pickle
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fray.cluster.current import storage_cluster
from fray.cluster.storage import StorageCluster
from fray.errors import Permanent
from fray.pool.pool_task import fetch, pickled
from fray.queue.async_queue import RENEWAL_SHARE
from fray.queue.engine import UnknownLease
from fray.queue.file_queue import FileQueue
from fray.queue.lease import Lease
from fray.rpc.actor_server import EXIT_TERMINATED
from fray.sync import persist_in_thread
from fray_coordinator import worker_pools
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreError
from fray_coordinator.queue.delivery import QueueNotFound
from fray_layouts.queue_keys import TaskKeys
from fray_layouts.queue_records import OutcomeKind, TaskOutcome
from fray_rpc.wire.serialization import pack_error
from fray_runtime import users_main
from fray_runtime.current_task import on_stop, task_environ
from fray_runtime.threads import start_loop

log = logging.getLogger("fray")

LEASE_INTERVALS, MAX_LEASE = 4, 20.0
"""The lease of a task: a number of the cluster's heartbeat intervals, and the most seconds. A dead worker's tasks come
back when their leases run out."""

GRACE = 10.0
"""Seconds that a worker has between SIGTERM and SIGKILL to end its task and write outcomes."""

_EXIT_SECONDS = 3.0
"""Seconds of that grace that are left for outcomes when a task that does not end is given back."""

_STOP_CHECK_SECONDS = 1.0
"""Longest time for which a thread waits before it checks again whether the worker ends."""

_PROCESS_WAIT = 30.0
"""Longest wait for a task in a worker that is a process. It needs no checks, because a stop ends the process."""

_FLUSH_SECONDS, _FLUSH_BYTES = 0.05, 2**20
"""Longest time that an outcome waits to be written with others, and the size at which they are written at once. A write
is one request whatever its size, and drivers do not poll more often."""

QueuedTask = tuple[str, bytes, bytes]
"""An item of the queue: a task's key, its pickled function (or the key of a large one), its pickled args and kwargs."""


class FunctionMissing(Permanent, RuntimeError):
    """The task's function is no longer in storage, because its pool was shut down: create another pool."""


def run_worker(name: str, incarnation: int, idle: float) -> None:
    """Work for a pool of the current cluster until the pool is shut down or the job is stopped.

    idle: seconds without a task after which the worker ends. The driver starts others when there is work.
    """
    with suppress(QueueNotFound):
        QueueWorker(storage_cluster(), name, incarnation, idle).work()


class QueueWorker:
    """A worker of one pool."""

    def __init__(self, cluster: StorageCluster, name: str, incarnation: int, idle: float) -> None:
        self._cluster = cluster
        self._idle = idle
        self._queue: FileQueue[QueuedTask] = FileQueue(
            cluster.root, name=name, namespace=cluster.namespace, incarnation=incarnation, durable=True
        )
        self._pool = (cluster.namespace, name, incarnation)
        self._tasks = TaskKeys.of(*self._pool)
        self._lease = cluster.run(_lease_seconds)
        self._is_process = task_environ() is os.environ
        self._lock = threading.Lock()
        self._written: list[TaskOutcome] = []
        self._bytes = 0
        self._finished: list[Lease[QueuedTask]] = []
        self._current: Lease[QueuedTask] | None = None
        self._noted = threading.Event()
        self._flushing = threading.Lock()
        self._free = threading.Event()
        self._stopping = threading.Event()
        self._function = functools.lru_cache(maxsize=8)(self._fetched)

    def work(self) -> None:
        """Take and run tasks until the pool is shut down, the worker is idle for too long, or it is stopped."""
        on_stop(self._stop)
        for loop in (self._keep, self._flush_soon):
            start_loop(loop, "fray-worker")
        try:
            self._prepare()
            while (lease := self._next()) is not None and self._begin(lease):
                self._run(lease)
        finally:
            self._flush()
            self._stopping.set()
            self._queue.close()
            self._clear_up()
            self._free.set()

    def _prepare(self) -> None:
        """Import the next task's function before taking the task, so that a worker that is ready can take it first."""
        if (item := self._queue.peek()) is not None:
            # Running the task reports any error, also the SystemExit of a module that calls sys.exit when imported.
            # A stop raises no exception here, because `work` passed `_stop` to `on_stop`.
            with suppress(BaseException):
                self._function(item[1])

    def _next(self) -> Lease[QueuedTask] | None:
        if self._finished:
            if (lease := self._queue.pop(self._lease)) is not None:
                return lease
            self._flush()
        wait = _PROCESS_WAIT if self._is_process else _STOP_CHECK_SECONDS
        deadline = time.monotonic() + self._idle
        while not self._stopping.is_set() and (left := deadline - time.monotonic()) > 0:
            if (lease := self._queue.pop(self._lease, wait=min(wait, left))) is not None:
                return lease
        return None

    def _begin(self, lease: Lease[QueuedTask]) -> bool:
        """Make this the current task. Returns False if the worker is ending; closing the queue then gives it back."""
        with self._lock:
            if self._stopping.is_set():
                return False
            self._current = lease
            return True

    def _run(self, lease: Lease[QueuedTask]) -> None:
        key, function, payload = lease.item
        try:
            call, names = self._function(function)
            args, kwargs = pickle.loads(payload)
            args, kwargs = tuple(map(fetch, args)), {name: fetch(value) for name, value in kwargs.items()}
            users_main.rebind(names)
            if inspect.isgeneratorfunction(call):
                self._iterate(key, call(*args, **kwargs))
            else:
                self._note(TaskOutcome(key, OutcomeKind.VALUE, data=pickled(call(*args, **kwargs))))
        except BaseException as error:  # the task would raise it on every other worker too
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # leave out this function's frame
            self._note(TaskOutcome(key, OutcomeKind.ERROR, data=pack_error(error).data))
        with self._lock:
            self._finished.append(lease)
            self._current = None

    def _iterate(self, key: str, items: Any) -> None:
        count = 0
        for item in items:
            self._note(TaskOutcome(key, OutcomeKind.ITEM, count, pickled(item)))
            count += 1
        self._note(TaskOutcome(key, OutcomeKind.END, count))

    def _fetched(self, pickled_form: bytes) -> tuple[Callable[..., Any], list[users_main.Binding]]:
        """The function of a task, and the names of `__main__` that came with it."""
        form = pickle.loads(pickled_form)
        if isinstance(form, str):
            key = self._tasks.object(form)
            found = self._cluster.run(lambda core: core.store.get(key))
            if found is None:
                raise FunctionMissing()
            form = found.data
        return users_main.loaded(form) if isinstance(form, bytes) else (form, [])

    def _note(self, outcome: TaskOutcome) -> None:
        with self._lock:
            self._written.append(outcome)
            self._bytes += len(outcome.data)
            full = self._bytes > _FLUSH_BYTES
        self._noted.set()
        if full:
            self._flush()

    def _flush_soon(self) -> None:
        """Write outcomes soon after they were noted, also while a task runs."""
        while not self._stopping.is_set():
            if self._noted.wait(_STOP_CHECK_SECONDS):
                self._stopping.wait(_FLUSH_SECONDS)
                self._flush()

    def _flush(self) -> None:
        """Write outcomes, then complete their tasks. Tries again while the storage is down."""
        with self._flushing:
            with self._lock:
                self._noted.clear()
                written, self._written, self._bytes = self._written, [], 0
                finished, self._finished = self._finished, []
            if written:
                write = functools.partial(worker_pools.write_outcomes, tasks=self._tasks, outcomes=written)
                persist_in_thread(lambda: self._cluster.run(write), "outcomes of tasks")
            if finished:
                persist_in_thread(lambda: self._call_done(finished), "outcomes of tasks")

    def _call_done(self, leases: list[Lease[QueuedTask]]) -> None:
        try:
            self._queue.done(leases)
        except UnknownLease as error:
            log.warning("a task's lease was lost, so the task runs again on another worker: %s", error)

    def _keep(self) -> None:
        """Renew the leases of tasks that are not completed yet."""
        while not self._stopping.wait(self._lease * RENEWAL_SHARE):
            with self._lock:
                held = [*self._finished, *([self._current] if self._current else [])]
            for lease in held:
                try:
                    if not lease.ended:
                        lease.extend(self._lease)
                except (StoreError, UnknownLease) as error:
                    log.warning("a task's lease could not be renewed: %s", error)

    def _stop(self) -> None:
        """Let the running task end. If it does not end in time it is given back, which does not count as a failure.

        Outcomes are written before the queue is closed, because closing gives back every task that is not completed.
        """
        with self._lock:
            self._stopping.set()
            busy = self._current is not None
        if not self._is_process:
            return
        if busy and not self._free.wait(GRACE - _EXIT_SECONDS) and (lease := self._current) is not None:
            self._give_back(lease)
        self._flush()
        self._queue.close()
        if not self._free.is_set():
            self._clear_up()
        os._exit(0 if self._free.is_set() else EXIT_TERMINATED)

    def _clear_up(self) -> None:
        """Remove what this worker has written to a pool after it was shut down, since nobody else does."""
        try:
            if not self._cluster.run(lambda core: worker_pools.exists(core, self._tasks)):
                self._cluster.run(lambda core: worker_pools.remove(core, *self._pool))
        except StoreError as error:
            log.warning("objects of a pool that was shut down may be left in the storage: %s", error)

    def _give_back(self, lease: Lease[QueuedTask]) -> None:
        try:
            self._queue.release(lease, failed=False)
        except UnknownLease as error:
            log.warning("a task could not be given back, another worker has it already: %s", error)


async def _lease_seconds(core: Core) -> float:
    return min(LEASE_INTERVALS * core.settings.beat_interval, MAX_LEASE)
