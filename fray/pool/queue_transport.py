"""The transport through a queue in storage, where tasks and their outcomes outlive the driver.

A driver pushes tasks to the queue, and takes back those that are cancelled. A task is taken back by the rules of the
queue (`fray_coordinator.queue.cancelling`). Its outcome "cancelled" is stored before its item is completed, so that no
driver waits for it for ever, whenever this one dies.

A submission is one push to the queue and then one object with the tasks' keys, from which a later driver learns them.
Workers are jobs. The driver polls for their outcomes only while a task is unfinished.
"""

from __future__ import annotations

import functools
import logging
import secrets
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from fray import sync
from fray.cluster.storage import StorageCluster
from fray.entrypoints import NamedEntrypoint
from fray.errors import Permanent
from fray.futures import TaskFuture
from fray.pool import queue_worker
from fray.pool.dispatcher import PoolClosed
from fray.pool.future_table import FutureTable
from fray.pool.monitor import PoolMonitor
from fray.pool.pool_task import ObjectRef, PackedFunction, content_digest, must_pickle, must_pickle_arguments, pickled
from fray.pool.queue_worker import QueuedTask
from fray.pool.transport import SPARE_SECONDS, TaskCall, pool_progress
from fray.queue.engine import encode
from fray.queue.file_queue import FileEngine, FileQueue
from fray.types import EnvironmentConfig, JobRequest, ResourceConfig
from fray_coordinator import worker_pools
from fray_coordinator.protocol.queue_segments import batch_size
from fray_coordinator.store.interface import ABSENT
from fray_layouts.errors import FrayError
from fray_layouts.queue_keys import ItemPlace, QueueKeys, TaskKeys
from fray_layouts.queue_records import OutcomeKind, PoolRecord, QueueRecord, TaskOutcome
from fray_runtime.threads import nobody_waits, start_thread

log = logging.getLogger("fray")

R = TypeVar("R")


class TaskQueue(FileQueue[QueuedTask]):
    """The queue of a pool's tasks, which tells where each task waits."""

    def push_tasks(self, tasks: Sequence[QueuedTask], batch: int) -> list[ItemPlace]:
        """`push_many`; returns the places of the tasks in order."""
        items = encode(tasks, self._encoding)
        return sync.run(self._with_engine(lambda engine: engine.push_placed(items, batch)))

    def cancel_tasks(self, tasks: Mapping[ItemPlace, str], keys: TaskKeys) -> list[str]:
        """Cancel the tasks at these places that no worker has taken. Returns the ids of those that never run.

        Raises QueueNotFound if the pool was shut down, StoreUnavailable if the queue cannot be opened now.
        """

        async def cancelled(engine: FileEngine) -> set[ItemPlace]:
            async def note(places: Sequence[ItemPlace]) -> None:
                outcomes = [TaskOutcome(tasks[place], OutcomeKind.CANCELLED) for place in places]
                await worker_pools.write_outcomes(engine.queue.core, keys, outcomes)

            return await engine.cancel(tasks, note)

        return [tasks[place] for place in sync.run(self._with_engine(cancelled))]

    async def _with_engine(self, act: Callable[[FileEngine], Awaitable[R]]) -> R:
        engine = await self._engine.get()
        assert isinstance(engine, FileEngine), "a FileQueue opens no other"
        return await act(engine)


class TaskCanceller:
    """Cancels waiting tasks of one driver, together those that are asked for while others are being cancelled.

    It has a thread only while there is something to cancel. Callbacks of cancelled futures run in that thread and may
    cancel other tasks, so the next thread begins with these before any callback is called.
    """

    def __init__(self, queue: TaskQueue, keys: TaskKeys, table: FutureTable) -> None:
        self._queue = queue
        self._keys = keys
        self._table = table
        self._lock = threading.Lock()
        self._answers: dict[str, Future[bool]] = {}
        self._asked: list[str] = []
        self._busy = False

    def take_back(self, task: str, wait: bool) -> bool:
        """Cancel a task that no worker has taken; see `TaskFuture.take_back`."""
        with self._lock:
            answer = self._answers.get(task)
            if answer is None:
                answer = self._answers[task] = sync.running_future()
                self._asked.append(task)
                self._begin()
        if not wait or not answer.result():
            return False
        self._table.end_cancelled(task)
        return True

    def _begin(self) -> None:
        """Have a thread cancel what was asked for, unless one runs already. The caller holds the lock."""
        if self._busy or not self._asked:
            return
        try:
            start_thread(self._cancel_asked, "fray-cancel", nobody_waits)  # whatever is raised, the answers are set
            self._busy = True
        except RuntimeError as error:  # no thread can be started; who asks again tries again
            log.warning("%d tasks were not cancelled, and go on: %s", len(self._asked), error)
            for task in self._asked:
                self._answers.pop(task).set_result(False)
            self._asked = []

    def _cancel_asked(self) -> None:
        with self._lock:
            asked, self._asked = self._asked, []
        places = {place: task for task in asked if (place := self._table.place_of(task)) is not None}
        taken: list[str] = []
        try:
            if places:
                taken = self._queue.cancel_tasks(places, self._keys)
        except FrayError as error:
            log.warning("%d tasks were not cancelled, and go on: %s", len(places), error)
        finally:
            self._answer(asked, taken)

    def _answer(self, asked: Sequence[str], taken: Collection[str]) -> None:
        with self._lock:
            self._busy = False
            self._begin()
        for task in asked:
            self._answers[task].set_result(task in taken)
        try:
            for task in taken:
                self._table.end_cancelled(task)
        finally:
            with self._lock:
                for task in asked:
                    del self._answers[task]


_QUEUE_SETTINGS = QueueRecord(max_deliveries=3)
"""A task is given up after three workers have died while they ran it."""

_BATCHES_PER_WORKER = 4
"""Batches per worker into which the remaining tasks are split: enough that all workers finish almost together."""


class PoolNotFound(Permanent, LookupError):
    """There is no pool with a queue of that name, or it was shut down: create a new one."""


class QueueTransport:
    """A `Transport` through a queue in storage."""

    def __init__(
        self,
        cluster: StorageCluster,
        namespace: str,
        name: str,
        found: tuple[int, PoolRecord],
        resources: ResourceConfig,
        environment: EnvironmentConfig | None,
        idle: float,
        shared: bool = False,
    ) -> None:
        self._incarnation, record = found
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._tasks = TaskKeys.of(namespace, name, self._incarnation)
        self._queue = TaskQueue(
            cluster.root, name=name, namespace=namespace, incarnation=self._incarnation, durable=True
        )
        self._worker = JobRequest(
            name=name,
            namespace=namespace,
            entrypoint=NamedEntrypoint(
                queue_worker.run_worker, (name, self._incarnation, idle), name=f"worker of pool {name}"
            ),
            resources=resources,
            environment=environment,
            grace=queue_worker.GRACE,
        )
        self._uploaded: set[str] = set()
        self._table = FutureTable(shared, self.progress, self._take_back)
        self._canceller = TaskCanceller(self._queue, self._tasks, self._table)
        jobs = [] if shared else record.jobs
        self._monitor = PoolMonitor(
            cluster, name, self._tasks, self._queue, self._table, jobs, self._shut_down_elsewhere
        )
        cluster.show_output(jobs)

    @classmethod
    def open(
        cls,
        cluster: StorageCluster,
        namespace: str,
        name: str,
        resources: ResourceConfig,
        environment: EnvironmentConfig | None,
        idle: float,
        *,
        new: bool,
        old: bool,
        shared: bool = False,
    ) -> QueueTransport:
        """Open or create the pool of a name.

        Args:
            idle: see `queue_worker.run_worker`.
            new: whether it may be created.
            old: whether an existing pool may be opened, which an earlier driver has left.
            shared: see `WorkerPool.attach`.

        Raises:
            NameTaken: a pool of the name exists and `old` is False, or a queue has the name.
            PoolNotFound: no pool of the name exists, and `new` is False.
        """
        QueueKeys.checked(name)
        if new:
            found = cluster.run(lambda core: worker_pools.create(core, namespace, name, _QUEUE_SETTINGS, exist_ok=old))
        elif (living := cluster.run(lambda core: worker_pools.find(core, namespace, name))) is not None:
            found = living
        else:
            raise PoolNotFound(f"{name} in namespace {namespace}: {PoolNotFound.__doc__}")
        opened = cls(cluster, namespace, name, found, resources, environment, idle, shared)
        if old:
            cluster.run(lambda core: worker_pools.touch(core, opened._tasks))
            if not shared:
                opened._monitor.catch_up()
        return opened

    @property
    def folder(self) -> str:
        return f"{self._cluster.root}/{self._tasks.files}"

    @property
    def futures(self) -> Mapping[str, TaskFuture[Any]]:
        return self._table.futures

    @property
    def workers(self) -> int:
        return self._monitor.workers.count()[0]

    @property
    def wanted(self) -> int:
        return self._monitor.workers.count()[1]

    @property
    def unfinished(self) -> int:
        return self._table.unfinished

    def submit(self, calls: Sequence[TaskCall], workers: int) -> list[TaskFuture[Any]]:
        self._check_open()
        keyed = [(self._task(call), call) for call in calls]
        items = [self._item(key, call) for key, call in keyed]
        try:
            futures = [self._table.enter(key, call.function.yields, not call.key) for key, call in keyed]
            places = self._push(items, workers)
            for (key, _), place in zip(keyed, places, strict=True):
                self._table.note_place(key, place)
            entries = [
                TaskOutcome(key, OutcomeKind.SUBMITTED, int(call.function.yields), str(place).encode())
                for (key, call), place in zip(keyed, places, strict=True)
            ]
            self._cluster.run(lambda core: worker_pools.write_outcomes(core, self._tasks, entries))
        except BaseException as error:
            self._table.withdraw([key for key, _ in keyed], error)
            raise
        self._monitor.wake()
        return futures

    def put(self, obj: object) -> ObjectRef:
        """Store an object for tasks. Raises InvalidInput if it cannot be pickled, PoolClosed if the pool is closed."""
        self._check_open()
        with must_pickle("obj", obj, "put the data that it is made from"):
            data = pickled(obj)
        key = self._tasks.object(content_digest(data))
        self._cluster.run(lambda core: core.store.put(key, data, ABSENT))
        return ObjectRef(self._cluster.root, key)

    def grow(self, count: int) -> None:
        if not self._table.closed:
            self._monitor.workers.add(self._cluster.launch_many([self._worker] * count))

    def shrink(self, count: int) -> None:
        if self._table.idle_seconds > SPARE_SECONDS:  # while there are tasks, idle workers end by themselves
            self._monitor.workers.shrink(count)

    def await_workers(self, count: int, timeout: float) -> None:
        self._monitor.await_workers(count, timeout)

    def drain(self, within: float) -> bool:
        return self._table.await_all(within)

    def progress(self) -> str:
        workers = self._monitor.workers
        return pool_progress(self._table.submitted, self._table.unfinished, *workers.last_count(), workers.absence.why)

    def detach(self) -> None:
        """End all workers. Tasks and outcomes stay in storage."""
        self._stop("this driver has detached from the pool; attach to it again")
        self._monitor.workers.forget()

    def close(self, why: str) -> None:
        self._table.close(why)

    def end(self) -> None:
        self._remove("the pool was shut down before the task was done")

    def _shut_down_elsewhere(self) -> None:
        self._remove("the pool was shut down by another driver")

    def _remove(self, why: str) -> None:
        self._stop(why)
        self._cluster.run(lambda core: worker_pools.remove(core, self._namespace, self._name, self._incarnation))

    def _stop(self, why: str) -> None:
        self._monitor.end()
        self._table.close(why)
        self._queue.close()

    def _check_open(self) -> None:
        """Raise PoolClosed if this or another driver has shut down the pool."""
        if not self._table.closed and not self._cluster.run(lambda core: worker_pools.exists(core, self._tasks)):
            self._shut_down_elsewhere()
        if self._table.closed:
            raise PoolClosed(self._table.closed)

    def _push(self, items: Sequence[queue_worker.QueuedTask], workers: int) -> list[ItemPlace]:
        """Put the items into the queue, and return their places in order."""
        places: list[ItemPlace] = []
        for count, batch in plan_batches(len(items), workers):
            places += self._queue.push_tasks(items[len(places) : len(places) + count], batch)
        return places

    def _take_back(self, task: str, wait: bool) -> bool:
        return self._canceller.take_back(task, wait)

    def _task(self, call: TaskCall) -> str:
        if call.again:
            return self._table.next_run(call.key)
        return call.key or secrets.token_hex(8)

    def _item(self, key: str, call: TaskCall) -> queue_worker.QueuedTask:
        self._upload(call.function)
        with must_pickle_arguments(call.args, call.kwargs):
            return key, _pickled_form(call.function.form), pickled((call.args, call.kwargs))

    def _upload(self, function: PackedFunction) -> None:
        """Store a large function for workers under the hash of its content, so that storing it twice does no harm."""
        form = function.form
        if isinstance(form, str) and form not in self._uploaded:
            self._cluster.run(lambda core: core.store.put(self._tasks.object(form), function.pickled, ABSENT))
            self._uploaded.add(form)


def plan_batches(tasks: int, workers: int) -> Iterator[tuple[int, int]]:
    """The number of tasks and the batch size of each push, in order.

    A worker takes a whole batch, so batches get smaller towards the end. The last tasks are batches of one, so that no
    worker is idle while another has several tasks left.
    """
    batch = batch_size(tasks, None)
    while tasks:
        batch = max(1, min(batch, tasks // (_BATCHES_PER_WORKER * workers)))
        count = tasks if batch == 1 else tasks - min(tasks - batch, batch * workers)
        yield count, batch
        tasks -= count


@functools.lru_cache(maxsize=8)
def _pickled_form(form: Callable[..., Any] | bytes | str) -> bytes:
    return pickled(form)
