"""The client for development: everything runs in threads of this process."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from fray.actor.current import in_actor
from fray.client.storage_client import StorageClient
from fray.cluster.job_handle import JobHandle
from fray.cluster.local_cluster import LocalCluster
from fray.cluster.storage import StorageCluster
from fray.errors import ActorUnavailableError
from fray.types import ActorConfig, EnvironmentConfig, JobId, ResourceConfig
from fray_coordinator.core import Core
from fray_coordinator.jobs.lookup import all_jobs
from fray_coordinator.protocol.transitions import is_terminal

if TYPE_CHECKING:
    from fray.actor.group import ActorGroup
    from fray.actor.handle import ActorHandle

__all__ = ["LocalClient", "LocalJobHandle"]

T = TypeVar("T")

LocalJobHandle = JobHandle


class LocalClient(StorageClient):
    """A private cluster of threads; see `Client` for the methods.

    A job's function and arguments, and those of an actor's class, are the caller's own objects, whether they can be
    pickled or not. What calls of actors take and return is pickled as everywhere, but for what cannot be: that goes as
    it is. Results of jobs are pickled. `create_actor` and `create_actor_group` return when the actors serve calls, and
    raise what their `__init__` raises; in an actor they return at once, as those of other clients do, because their
    `__init__` may call the one that creates them. Commands are processes. What other machines would have (devices,
    regions, replicas, extras, packages, images) is not looked at: what needs a TPU elsewhere is tried out here.
    Pickled, it is itself in the process that made it, and a `StorageClient` elsewhere. The threads of one process
    cannot be kept apart as processes are:

    - Variables that a job or an actor asks for are set in `os.environ` while it runs, so the whole process sees them. A
      job that asks for another value than one that runs fails, and says so.
    - `logs()` has what a job's own thread, its coroutines and an actor's calls print to `sys.stdout` and `sys.stderr`,
      which the process prints as well. What threads and processes that it starts print is not kept, nor what handlers
      of `logging` print that were made before it ran.
    - A process that a callable starts does not know the job, and works with a `LocalClient` of its own; one that a job
      runs as its command does.
    - A thread cannot be killed: one that does not end when it is stopped goes on until it returns.

    Args:
        max_threads: jobs that run at once, the others wait, but for those that `LocalCluster` does not count; by
            default any number.
        cluster: a `LocalCluster(use_processes=False)` that is open already, instead of one of its own.
    """

    def __init__(self, max_threads: int | None = None, *, cluster: LocalCluster | None = None) -> None:
        super().__init__(cluster or LocalCluster(max_workers=max_threads, use_processes=False))
        with _lock:
            _clients.setdefault(self.cluster.root, self)

    def create_actor(
        self,
        actor_class: type[T],
        *args: Any,
        name: str,
        resources: ResourceConfig | None = None,
        actor_config: ActorConfig | None = None,
        environment: EnvironmentConfig | None = None,
        **kwargs: Any,
    ) -> ActorHandle[T]:
        group = self.create_actor_group(
            actor_class,
            *args,
            name=name,
            count=1,
            resources=resources,
            actor_config=actor_config,
            environment=environment,
            **kwargs,
        )
        return group.handles[0]

    def create_actor_group(
        self,
        actor_class: type[T],
        *args: Any,
        name: str,
        count: int,
        resources: ResourceConfig | None = None,
        actor_config: ActorConfig | None = None,
        environment: EnvironmentConfig | None = None,
        **kwargs: Any,
    ) -> ActorGroup[T]:
        group = super().create_actor_group(
            actor_class,
            *args,
            name=name,
            count=count,
            resources=replace(resources or ResourceConfig(), cpu=0),
            actor_config=actor_config,
            environment=environment,
            **kwargs,
        )
        if in_actor():  # which may be called by their `__init__`, and runs one call at a time
            return group
        try:
            group._await_all()
        except ActorUnavailableError as error:
            group.shutdown()
            raise (error.__cause__ or error) from ActorUnavailableError(str(error))
        return group

    def shutdown(self, wait: bool = True) -> None:
        if wait:
            unfinished = self.cluster.run(_unfinished)
            self.cluster.wait(unfinished)
        super().shutdown(wait)

    def __reduce__(self) -> tuple[Any, ...]:
        return client_of, (self.cluster,)


_lock = threading.Lock()
_clients: WeakValueDictionary[str, LocalClient] = WeakValueDictionary()
"""Of the threads' clusters that this process made, by root."""


def client_of(cluster: StorageCluster) -> StorageClient:
    """The client of a cluster: of one whose jobs are threads of this process, the process's own."""
    if not isinstance(cluster, LocalCluster) or cluster.use_processes:
        return StorageClient(cluster)
    with _lock:
        known = _clients.get(cluster.root)
    return known or LocalClient(cluster=cluster)


async def _unfinished(core: Core) -> list[JobId]:
    """The jobs that end by themselves; actors do not."""
    jobs = await all_jobs(core, problems={})
    return [JobId(job.id) for job in jobs if not is_terminal(job) and not job.spec.actor]
