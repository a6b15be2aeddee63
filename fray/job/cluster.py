"""The context on a cluster: tasks go through a queue to workers that come and go, objects lie in the bucket."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from fray.cluster import StorageCluster, current_cluster
from fray.errors import FrayError
from fray.job.context import JobContext, Lifetime, checked_workers
from fray.pool import ObjectRef, WorkerPool
from fray.pool.objects import fetched
from fray.types import ResourceConfig
from fray_coordinator import sync

if TYPE_CHECKING:
    from fray.actor import ActorHandle

log = logging.getLogger("fray")


class ClusterContext(JobContext):
    """See `JobContext`.

    A task that takes a reference as an argument is given the object. Results, values of generators and objects are in
    storage, so they survive the worker that made them, until `close`.

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
        self._made: WorkerPool | None = None

    def put(self, obj: Any) -> ObjectRef:
        """Store an object."""
        return self._pool.put(obj)

    def get(self, ref: Any) -> Any:
        """What a reference or a future stands for; see `JobContext.get`. Raises ObjectGone."""
        return fetched(super().get(ref))

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

    def close(self) -> None:
        """End the workers, and remove what they and `put` have stored; see `JobContext.close`."""
        with self._lock:
            made, self._made = self._made, None
        if made is not None:
            made.shutdown(wait=False)

    @property
    def _pool(self) -> WorkerPool:
        with self._lock:
            if self._made is None:
                sizes = (0, self._max_workers)
                self._made = WorkerPool(self._cluster, sizes, self._resources, name_prefix="task", transport="queue")
                sync.at_exit(self._leave)
            return self._made

    def _leave(self) -> None:
        """Close at the end of the process; a cluster that ended before has taken everything with it."""
        try:
            self.close()
        except FrayError as error:
            log.warning("the workers of a job context were not ended: %s", error)
