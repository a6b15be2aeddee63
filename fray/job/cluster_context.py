"""The context on a cluster: tasks go through a queue to workers that come and go, objects lie in the bucket."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from fray import sync
from fray.actor.handle import cluster_at
from fray.cluster.current import current_cluster
from fray.cluster.storage import StorageCluster
from fray.errors import FrayError
from fray.futures import GeneratorFuture, result_of
from fray.job.job_context import (
    JobContext,
    Lifetime,
    checked_workers,
    map_refs,
)
from fray.pool.objects import ObjectRef, fetch
from fray.pool.worker_pool import WorkerPool
from fray.types import JobStatus, ResourceConfig

if TYPE_CHECKING:
    from fray.actor.handle import ActorHandle

T = TypeVar("T")

log = logging.getLogger("fray")


@dataclass(frozen=True)
class BorrowedPool:
    """Where the pool of a context is that was pickled."""

    root: str
    namespace: str
    pool: str


class ClusterContext(JobContext):
    """See `JobContext`.

    A task that takes a reference as an argument is given the object. Results, values of generators and objects are in
    storage, so they survive the worker that made them, until `close`.

    Pickled, in a task's arguments for one, it is a context on the same pool, which it never ends: it submits, stores
    and fetches; workers that it starts for its own tasks end with it.

    Args:
        max_workers: as many as there are tasks, up to this.
        cluster: by default the current one.
        resources: of each worker.
    """

    def __init__(
        self, max_workers: int = 1, cluster: StorageCluster | None = None, resources: ResourceConfig | None = None
    ) -> None:
        self._max_workers = checked_workers(max_workers)
        self._cluster = cluster or current_cluster()
        self._resources = resources
        self._lock = threading.Lock()
        self._lent: BorrowedPool | None = None
        self._made: WorkerPool | None = None
        self._leaves = False

    def put(self, obj: Any) -> ObjectRef:
        """Store an object."""
        return self._pool.put(obj)

    def get(self, ref: Any) -> Any:
        """What a reference or a future stands for; see `JobContext.get`. Raises ObjectGone."""
        return map_refs(ref, lambda one: fetch(result_of(one)))

    @overload
    def run(self, fn: Callable[..., Iterator[T]], *args: Any, name: str | None = None) -> GeneratorFuture[T]: ...
    @overload
    def run(self, fn: Callable[..., T], *args: Any, name: str | None = None) -> Future[T]: ...
    def run(self, fn: Callable[..., Any], *args: Any, name: str | None = None) -> Future[Any]:
        """Push `fn(*args)` for the next free worker; see `JobContext.run`."""
        return self._pool.submit(fn, *args)

    def create_actor(
        self,
        actor_class: type,
        *args: Any,
        name: str | None = None,
        get_if_exists: bool = False,
        lifetime: Lifetime = "non_detached",
        preemptible: bool = True,
        num_cpus: float | None = None,
        **kwargs: Any,
    ) -> ActorHandle[Any]:
        """An actor in a job of its own; see `JobContext.create_actor`."""
        from fray.actor.named import create_named_actor

        return create_named_actor(
            self._cluster,
            actor_class,
            args,
            kwargs,
            name=name or f"actor-{secrets.token_hex(4)}",
            get_if_exists=get_if_exists,
            lifetime=lifetime,
            preemptible=preemptible,
            num_cpus=num_cpus,
        )

    def delete_actor(self, actor: ActorHandle[Any]) -> None:
        """Stop the actor's job; see `JobContext.delete_actor`."""
        from fray.actor.named import delete_actor

        delete_actor(actor)

    def get_actor_status(self, actor: ActorHandle[Any]) -> JobStatus:
        """That of the actor's job; see `JobContext.get_actor_status`."""
        from fray.actor.named import actor_status

        return actor_status(actor)

    def close(self) -> None:
        """End the workers, and remove what they and `put` have stored; see `JobContext.close`."""
        with self._lock:
            made, self._made = self._made, None
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
            if self._made is None:
                self._made = self._opened((0, self._max_workers))
                if not self._leaves:
                    sync.at_exit(self._leave)
                    self._leaves = True
            return self._made

    def _opened(self, sizes: tuple[int, int]) -> WorkerPool:
        if self._lent is None:
            return WorkerPool(self._cluster, sizes, self._resources, name_prefix="task", transport="queue")
        namespace, name = self._lent.namespace, self._lent.pool
        return WorkerPool.attach(name, self._cluster, sizes, self._resources, namespace=namespace, shared=True)

    def _leave(self) -> None:
        """Close at the end of the process; a cluster that ended before has taken everything with it."""
        try:
            self.close()
        except FrayError as error:
            log.warning("the workers of a job context were not ended: %s", error)


_making = threading.Lock()
_borrowed_contexts: dict[BorrowedPool, ClusterContext] = {}


def _borrowed_context(lent: BorrowedPool, max_workers: int, resources: ResourceConfig | None) -> ClusterContext:
    """The one context of this process on that pool: each of a worker's many tasks may bring it along."""
    with _making:
        if lent not in _borrowed_contexts:
            made = ClusterContext(max_workers, cluster_at(lent.root), resources)
            made._lent = lent
            _borrowed_contexts[lent] = made
        return _borrowed_contexts[lent]


def _forget() -> None:
    """A fork copies neither the threads of a pool nor its connections."""
    global _making
    _making = threading.Lock()
    _borrowed_contexts.clear()


os.register_at_fork(after_in_child=_forget)
