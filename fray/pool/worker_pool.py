"""`WorkerPool`: a pool of workers that run independent tasks."""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar

from fray import sync
from fray.call_forms import says_form
from fray.cluster.api import Cluster
from fray.cluster.current import storage_cluster
from fray.cluster.storage import StorageCluster
from fray.display import Shown, ShownTable
from fray.errors import InvalidInput
from fray.futures import TaskFuture
from fray.job_spec import gang_size
from fray.pool.direct_transport import DirectTransport
from fray.pool.dispatcher import PoolClosed
from fray.pool.future_table import CompletedFutures
from fray.pool.pool_task import ObjectRef, packed_function
from fray.pool.queue_transport import QueueTransport
from fray.pool.transport import SPARE_SECONDS, PoolSize, TaskCall, Transport
from fray.sync import Block
from fray.types import EnvironmentConfig, ResourceConfig
from fray.wait_line import wait_with_progress
from fray_coordinator.errors import StoreError
from fray_layouts.queue_keys import QUEUE_NAME
from fray_layouts.queue_records import key_and_run
from fray_layouts.spec_parsing import check_name
from fray_runtime.threads import start_thread

F = TypeVar("F", bound=Future[Any])
P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

log = logging.getLogger("fray")

_RESIZE_INTERVAL = 1.0
"""Seconds between two checks of the number of workers while no tasks are submitted."""

_RESIZE_PAUSE = 0.02
"""Least seconds between two checks while tasks are submitted, so that many submissions lead to one check."""


@says_form(
    "WorkerPool(cluster, num_workers=4, resources=ResourceConfig(cpu=1))",
    parts={"resources": ResourceConfig, "environment": EnvironmentConfig},
)
class WorkerPool(Shown, Block):
    """A pool of workers, each a job of its own, that run functions.

        with WorkerPool(current_cluster(), num_workers=10, resources=ResourceConfig.with_cpu(2, memory="4GB")) as pool:
            futures = pool.map(process, shards)
            for future in pool.as_completed(futures, progress="shards"):
                print(future.result())

    The next task goes to an idle worker. If a worker dies, its tasks go to other workers; a task that three workers
    died of fails with `TaskKillsWorkers`. So a task may run more than once, even if only the connection to its worker
    was lost.

    Args:
        cluster: the cluster that the workers run on; by default the current one.
        num_workers: the number of workers, or a pair (minimum, maximum): then there is one for each unfinished task
            within these limits.
        resources: what each worker needs.
        environment: the workers' environment.
        name_prefix: beginning of the names of the workers' jobs.
        transport: "direct" calls the workers, which is quick, but the tasks are lost with the driver's process. "queue"
            keeps tasks and outcomes in storage, so that another driver can `attach` and go on after this one has died.
        name: the name of a pool with a queue, by which `attach` finds it.

    Raises:
        InvalidInput: an argument is wrong.
        NameTaken: another pool or queue has the name.
    """

    def __init__(
        self,
        cluster: Cluster | None = None,
        num_workers: int | Sequence[int] = 1,
        resources: ResourceConfig | None = None,
        environment: EnvironmentConfig | None = None,
        name_prefix: str = "worker",
        *,
        transport: Literal["direct", "queue"] = "direct",
        name: str | None = None,
    ) -> None:
        check_name("name_prefix", name_prefix)
        if transport == "queue" and not QUEUE_NAME.fullmatch(f"{name_prefix}-{'0' * 8}"):
            remedy = "it becomes a queue's name: use at most 55 letters, digits, '-' and '_', no dots"
            raise InvalidInput("name_prefix", name_prefix, remedy)
        size = PoolSize.of(num_workers)
        storage = _checked(cluster)
        resources = _of_one_process(resources or ResourceConfig())
        own_name = name or f"{name_prefix}-{secrets.token_hex(4)}"
        match transport:
            case "direct" if name is None:
                made: Transport = DirectTransport(storage, own_name, resources, environment)
            case "direct":
                raise InvalidInput("name", name, 'only a pool with transport="queue" can be found again')
            case "queue":
                made = QueueTransport.open(
                    storage, storage.namespace, own_name, resources, environment, size.idle, new=True, old=False
                )
            case _:
                raise InvalidInput("transport", transport, 'give "direct" or "queue"')
        self._begin(own_name, made, size)

    @classmethod
    def attach(
        cls,
        name: str,
        cluster: Cluster | None = None,
        num_workers: int | Sequence[int] = 1,
        resources: ResourceConfig | None = None,
        environment: EnvironmentConfig | None = None,
        *,
        namespace: str | None = None,
        create: bool = False,
        shared: bool = False,
    ) -> Self:
        """Continue with a pool whose driver has died. Its finished and unfinished tasks are in `futures`.

        Args:
            num_workers, resources, environment: as for a new pool; workers that still run are counted.
            namespace: the namespace of the pool's name; by default the cluster's.
            create: whether to create the pool if it does not exist.
            shared: True if the pool's driver is alive. This object then sees only the tasks that it submits itself and
                the workers that it starts for them; `detach` from the pool instead of shutting it down.

        Raises:
            PoolNotFound: there is no pool of that name, or it was shut down.
            InvalidInput: an argument is wrong.
            NameTaken: the name is that of a queue without a pool.
        """
        size = PoolSize.of(num_workers)
        pool = cls.__new__(cls)
        storage = _checked(cluster)
        space, resources = namespace or storage.namespace, _of_one_process(resources or ResourceConfig())
        found = QueueTransport.open(
            storage, space, name, resources, environment, size.idle, new=create, old=True, shared=shared
        )
        pool._begin(name, found, size)
        return pool

    def _begin(self, name: str, transport: Transport, size: PoolSize) -> None:
        self._name = name
        self._transport = transport
        self._limits = size
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._resize_now = threading.Event()
        self._adjust()
        start_thread(self._keep_size, "fray-pool-size", self._cannot_keep_size)

    @property
    def name(self) -> str:
        """The pool's name; `attach` finds a pool with a queue by it."""
        return self._name

    @property
    def size(self) -> int:
        """The number of workers that run now; for a pool with a queue, a few seconds ago.

        `resize` changes how many there should be, and `wait_for_workers` waits for them.
        """
        return self._transport.workers

    @property
    def futures(self) -> Mapping[str, TaskFuture[Any]]:
        """The futures of a pool with a queue, by the keys of their tasks, in the order of submission.

        They are the tasks that have a key of the user's, and those that existed when this driver attached. A task that
        this driver submits without a key is among them only until it is done; keep its future for the result.
        """
        return self._queued("futures").futures

    def wait_for_workers(self, min_workers: int | None = None, timeout: float = 60.0) -> None:
        """Block until there are `min_workers` workers; by default as many as there should be.

        Raises:
            TimeoutError: there are fewer after `timeout` seconds; the message says what they wait for.
            PoolClosed: the pool was shut down, or every worker has ended before it could be called.
            JobFailed: the workers of a pool with a queue failed again and again.
        """
        self._transport.await_workers(self._transport.wanted if min_workers is None else min_workers, timeout)

    async def wait_for_workers_async(self, min_workers: int | None = None, timeout: float = 60.0) -> None:
        """`wait_for_workers`, for coroutines."""
        await sync.in_thread(lambda: self.wait_for_workers(min_workers, timeout))

    def submit(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> TaskFuture[T]:
        """Run `fn(*args, **kwargs)` on a worker, and return a future of its result at once.

        Function and arguments are pickled before this returns, so later changes to them have no effect.

        Raises:
            InvalidInput: the function or an argument cannot be pickled.
            PoolClosed: this or another driver has shut down the pool.
        """
        return self._submit([TaskCall(packed_function(fn), args, kwargs)])[0]

    def submit_as(self, key: str, fn: Callable[..., T], *args: Any, **kwargs: Any) -> TaskFuture[T]:
        """Submit a task under a key. If the key already has a task, done or not, its future is returned instead.

        So a driver that died and attaches again can submit the same keys, and each runs once. Only a pool with a queue
        has this method.

        Raises:
            InvalidInput: the key is no text or is empty; otherwise as `submit`.
        """
        known = self._queued("submit_as").futures.get(_checked_key(key))
        return known if known is not None else self._submit([TaskCall(packed_function(fn), args, kwargs, key)])[0]

    def map_as(
        self, fn: Callable[[S], T], items: Mapping[str, S], *, retry_failed: bool = False
    ) -> list[TaskFuture[T]]:
        """Submit `fn(item)` for each key and item, as `submit_as` does but in one push. Returns the futures in order.

            pool = WorkerPool.attach("nightly", create=True)
            futures = pool.map_as(process, {path: path for path in paths})  # goes on where an earlier run has died

        Args:
            retry_failed: True runs keys whose task has failed or was cancelled again, with the current `fn`. Tasks that
                have succeeded or are unfinished stay. From then on `futures` has the new run, for later drivers too.

        Raises:
            InvalidInput: the function or an item cannot be pickled, a key is no text, or the pool has no queue.
            PoolClosed: this or another driver has shut down the pool.
        """
        known, function = self._queued("map_as").futures, packed_function(fn)
        for key in items:
            _checked_key(key)
        missing = [key for key in items if key not in known or (retry_failed and _has_failed(known[key]))]
        self._submit([TaskCall(function, (items[key],), {}, key, again=key in known) for key in missing])
        return [known[key] for key in items]

    @says_form("pool.map(function, items); for several lists: pool.map(lambda both: function(*both), zip(xs, ys))")
    def map(self, fn: Callable[[S], T], items: Iterable[S]) -> list[TaskFuture[T]]:
        """Submit `fn(item)` for each item, and return the futures in the same order at once.

        The function is pickled only once. `as_completed` iterates over the futures as they are done.

        Raises:
            InvalidInput, PoolClosed: as `submit`; nothing was submitted.
        """
        function = packed_function(fn)
        return self._submit([TaskCall(function, (item,), {}) for item in items])

    def put(self, obj: Any) -> ObjectRef:
        """Store an object once for many tasks. A task that gets the reference as an argument gets the object.

        Only a pool with a queue has this method. Raises InvalidInput if the object cannot be pickled.
        """
        return self._queued("put").put(obj)

    @property
    def folder(self) -> str:
        """The URL under which tasks of a pool with a queue may store files. They are removed with the pool."""
        return self._queued("folder").folder

    def as_completed(
        self, futures: Iterable[F], timeout: float | None = None, progress: str = ""
    ) -> CompletedFutures[F]:
        """Iterate over the futures as they are done, with `for` or, in coroutines, with `async for`.

        Args:
            timeout: seconds for all of them. Afterwards the builtin TimeoutError is raised, with the pool's progress.
            progress: title of a progress bar; "" shows none.
        """
        return CompletedFutures(futures, self._transport.progress, timeout, progress)

    def resize(self, num_workers: int | Sequence[int]) -> None:
        """Change the number of workers; returns at once. Surplus workers end when they are idle.

        Args:
            num_workers: a number, or a pair (minimum, maximum) for a pool that grows with its tasks.
        """
        self._limits = PoolSize.of(num_workers)
        self._adjust()

    def shutdown(self, wait: bool = True) -> None:
        """End the workers, and remove tasks and outcomes from storage.

        Args:
            wait: True first waits until all tasks are done. False ends unfinished tasks with `PoolClosed`.
        """
        if self._ended.is_set():
            return
        if wait:
            wait_with_progress(self._transport.drain, None, self._transport.progress)
        if self._end():
            self._transport.end()

    def detach(self) -> None:
        """End the workers of a pool with a queue. Its tasks and their outcomes stay, and `attach` continues with them.

        Unfinished futures of this process raise PoolClosed.

        Raises:
            InvalidInput: the pool has no queue.
        """
        queued = self._queued("detach")
        if self._end():
            queued.detach()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.shutdown(wait=kind is None)

    def __repr__(self) -> str:
        state = "shut down" if self._ended.is_set() else f"{self.size} of {self._transport.wanted} workers"
        return f"<WorkerPool {self._name!r}: {state}, {self._transport.unfinished} unfinished tasks>"

    def _shown(self) -> ShownTable:
        facts = {
            "workers": "shut down" if self._ended.is_set() else f"{self.size} of {self._transport.wanted}",
            "unfinished tasks": self._transport.unfinished,
        }
        return ShownTable.of(f"pool {self._name}", facts)

    def _submit(self, calls: list[TaskCall]) -> list[TaskFuture[Any]]:
        if self._ended.is_set():
            raise PoolClosed(f"pool {self._name} was shut down; make another one")
        futures = self._transport.submit(calls, self._limits.maximum) if calls else []
        self._resize_now.set()
        return futures

    def _adjust(self) -> None:
        """Start missing workers. `_keep_size` ends surplus ones."""
        if self._transport.wanted >= self._limits.maximum:
            return
        with self._lock:
            if self._ended.is_set():
                return
            missing = self._limits.wanted(self._transport.unfinished) - self._transport.wanted
            if missing > 0:
                self._transport.grow(missing)

    def _keep_size(self) -> None:
        """Adjust the number of workers until the pool ends."""
        spare_at = time.monotonic() + SPARE_SECONDS
        while not self._ended.wait(_RESIZE_PAUSE):
            self._resize_now.wait(_RESIZE_INTERVAL)
            self._resize_now.clear()
            try:
                if self._transport.unfinished or time.monotonic() > spare_at:
                    self._adjust()
                if time.monotonic() > spare_at:
                    self._end_spare()
                    spare_at = time.monotonic() + SPARE_SECONDS
            except StoreError as error:
                log.warning("the pool's workers cannot be checked now, and are checked again soon: %s", error)

    def _cannot_keep_size(self, error: BaseException) -> None:
        self._transport.close(f"its workers cannot be started: {error}")

    def _end(self) -> bool:
        """Mark the pool as ended, so that it starts no more workers. Returns whether this is the first call."""
        with self._lock:
            first = not self._ended.is_set()
            self._ended.set()
            self._resize_now.set()
            return first

    def _end_spare(self) -> None:
        with self._lock:
            spare = self._transport.wanted - self._limits.wanted(self._transport.unfinished)
            if spare > 0:
                self._transport.shrink(spare)

    def _queued(self, wanted: str) -> QueueTransport:
        if not isinstance(self._transport, QueueTransport):
            raise InvalidInput("transport", "direct", f'only a pool with transport="queue" has `{wanted}`')
        return self._transport


def _of_one_process(resources: ResourceConfig) -> ResourceConfig:
    """Return the resources of a worker. Raises InvalidInput if they ask for a gang."""
    if isinstance(resources, ResourceConfig) and (count := gang_size(resources)["replicas"]) != 1:
        raise InvalidInput("resources.replicas", count, "a worker is one process on one host; ask for more workers")
    return resources


def _checked(cluster: object) -> StorageCluster:
    if isinstance(cluster, (int, Sequence)):
        text = "a number of workers is num_workers=..., a cluster is LocalCluster() or StorageCluster(root)"
        raise InvalidInput("cluster", cluster, text)
    return storage_cluster(cluster)


def _checked_key(key: object) -> str:
    """Return a task's key. Raises InvalidInput if it is no text that can be stored, or looks like a later run's id."""
    remedy = "give a text that is not empty; other values as text: str(key)"
    if not isinstance(key, str) or not key:
        raise InvalidInput("key", key, remedy)
    if key_and_run(key) != (key, 1) or any("\ud800" <= char <= "\udfff" for char in key):
        raise InvalidInput("key", key, "give a text without surrogates and without the character U+001F")
    return key


def _has_failed(future: Future[Any]) -> bool:
    return future.cancelled() or (future.done() and future.exception() is not None)
