"""The job context on a cluster in storage: tasks go through a queue to workers, and objects are stored there."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fray import sync
from fray.actor.handle import ActorHandle
from fray.actor.named import create_requested_actor, delete_actor
from fray.actor.storage_actors import cluster_at
from fray.cluster.api import Cluster
from fray.cluster.current import storage_cluster
from fray.errors import FrayError
from fray.futures import TaskFuture, result_of
from fray.job.job_context import ProcessActorsContext, checked_workers, map_refs
from fray.pool.pool_task import ObjectRef, fetch
from fray.pool.worker_pool import WorkerPool
from fray.types import JobRequest, ResourceConfig
from fray_coordinator.per_process import PerProcess

T = TypeVar("T")

log = logging.getLogger("fray")


@dataclass(frozen=True)
class BorrowedPool:
    """The address of the pool that a pickled context uses."""

    root: str
    namespace: str
    pool: str


class ClusterContext(ProcessActorsContext):
    """A `JobContext` on a cluster: tasks run on workers, actors in jobs of their own.

    A task that takes a reference as an argument gets the object. Results, values of generators and objects are in
    storage, so they outlive the worker that made them, until `close`.

    A context that was unpickled, for example from a task's arguments, uses the same pool: it submits tasks, and stores
    and fetches objects, but never ends the pool. The workers that it starts for its own tasks end with it.

    Args:
        max_workers: number of workers at most; there are never more workers than tasks.
        cluster: by default the current one.
        resources: what each worker reserves.

    Raises:
        InvalidInput: `max_workers` is below 1, or the cluster is not in storage.
    """

    def __init__(
        self, max_workers: int = 1, cluster: Cluster | None = None, resources: ResourceConfig | None = None
    ) -> None:
        self._max_workers = checked_workers(max_workers)
        self._cluster = storage_cluster(cluster)
        self._resources = resources
        self._lock = threading.Lock()
        self._lent: BorrowedPool | None = None
        self._pool_made: WorkerPool | None = None
        self._closes_at_exit = False

    def put(self, obj: Any) -> ObjectRef:
        return self._pool.put(obj)

    def get(self, ref: Any) -> Any:
        """Wait for the value of a reference or of a task's or actor's future; other values are returned unchanged.

        Args:
            ref: a reference or future, or a list of them, for which a list of values is returned.

        Raises:
            Exception: what the task raised.
            ObjectGone: the context that stored the object was closed.
        """
        return map_refs(ref, lambda one: fetch(result_of(one)))

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], name: str | None) -> TaskFuture[Any]:
        return self._pool.submit(fn, *args)

    def _create_requested(self, request: JobRequest, get_if_exists: bool) -> ActorHandle[Any]:
        return create_requested_actor(self._cluster, request, get_if_exists)

    def delete_actor(self, actor: ActorHandle[Any]) -> None:
        delete_actor(actor)

    def close(self) -> None:
        with self._lock:
            made, self._pool_made = self._pool_made, None
        if made is None:
            return
        if self._lent is None:
            made.shutdown(wait=False)
        else:
            made.detach()

    def __reduce__(self) -> tuple[Any, ...]:
        lent = self._lent or BorrowedPool(self._cluster.root, self._cluster.namespace, self._pool.name)
        return _borrowed_context, (lent, self._max_workers, self._resources)

    @property
    def _pool(self) -> WorkerPool:
        with self._lock:
            if self._pool_made is None:
                self._pool_made = self._opened((0, self._max_workers))
                if not self._closes_at_exit:
                    sync.at_exit(self._close_at_exit)
                    self._closes_at_exit = True
            return self._pool_made

    def _opened(self, sizes: tuple[int, int]) -> WorkerPool:
        if self._lent is None:
            return WorkerPool(self._cluster, sizes, self._resources, name_prefix="task", transport="queue")
        namespace, name = self._lent.namespace, self._lent.pool
        return WorkerPool.attach(name, self._cluster, sizes, self._resources, namespace=namespace, shared=True)

    def _close_at_exit(self) -> None:
        """Close at the end of the process. If the cluster has ended before, its workers have too."""
        try:
            self.close()
        except FrayError as error:
            log.warning("the workers of a job context could not be ended: %s", error)


_making = PerProcess(threading.Lock)
_borrowed_contexts: PerProcess[dict[BorrowedPool, ClusterContext]] = PerProcess(dict)
"""A forked child starts without, because it has neither the threads nor the connections of the contexts."""


def _borrowed_context(lent: BorrowedPool, max_workers: int, resources: ResourceConfig | None) -> ClusterContext:
    """The context on this pool that all tasks of this process share, since each of them may bring a pickled one."""
    with _making.value:
        if lent not in _borrowed_contexts.value:
            made = ClusterContext(max_workers, cluster_at(lent.root), resources)
            made._lent = lent
            _borrowed_contexts.value[lent] = made
        return _borrowed_contexts.value[lent]
