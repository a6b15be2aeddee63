"""`LocalClient`: a client for development. Its jobs and actors are threads of this process."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from fray.actor.running_actor import in_actor
from fray.client.storage_client import StorageClient
from fray.cluster.job_handle import JobHandle
from fray.cluster.local_cluster import LocalCluster
from fray.cluster.storage import StorageCluster
from fray.errors import ActorUnavailableError
from fray.types import JobId, JobRequest
from fray_coordinator.core import Core
from fray_coordinator.jobs.lookup import all_jobs
from fray_coordinator.protocol.transitions import is_terminal

if TYPE_CHECKING:
    from fray.actor.group import ActorGroup

__all__ = ["LocalClient", "LocalJobHandle"]

T = TypeVar("T")

LocalJobHandle = JobHandle


class LocalClient(StorageClient):
    """A client whose jobs and actors are threads of this process, on a private cluster; for development and tests.

        with set_current_client(LocalClient()) as client:
            client.submit(JobRequest("hello", lambda: print("hello"))).wait()

    Objects are passed without pickling where that is possible:

    - A job's function and arguments, and an actor's class and constructor arguments, are the caller's own objects.
    - Arguments and results of actors' calls are pickled, as on every cluster; objects that cannot be pickled are passed
      directly.
    - Results of jobs are pickled.

    Commands run as processes. Its own cluster simulates: a program that asks for a TPU can be tried here unchanged, and
    what this machine lacks is logged once. A gang runs all of its replicas. `create_actor` and
    `create_actor_group` return when the actors serve calls, and raise what their `__init__` raises. Within an actor
    they return at once, because the new actors' `__init__` may call the actor that creates them. Unpickled in this
    process the client is the same object; in another process it becomes a `StorageClient`.

    Threads of one process share some things that processes do not:

    - The variables of a job or an actor are set in `os.environ` while it runs, for the whole process. A job that needs
      another value than a running one fails with an error that says so.
    - `logs()` has what a job's own thread, its coroutines and an actor's calls print to `sys.stdout` and `sys.stderr`;
      the process prints it as well. The output of threads and processes that a job starts, and of `logging` handlers
      that were created before the job ran, is not kept.
    - A process that a callable starts is not part of the job, and gets its own `LocalClient`.
    - A thread cannot be killed: if it does not end when it is stopped, it goes on until it returns.

    Args:
        max_threads: number of jobs that run at once, while others wait; by default any number. It does not limit jobs
            that `LocalCluster` does not count.
        cluster: an open `LocalCluster` of threads to use: one made with `use_processes=False`, or the `threads` of one
            with processes. By default the client creates its own.
    """

    def __init__(self, max_threads: int | None = None, *, cluster: LocalCluster | None = None) -> None:
        super().__init__(cluster or LocalCluster(max_workers=max_threads, use_processes=False, simulate=True))
        with _lock:
            _clients.setdefault(self.cluster.root, self)

    def _create_actors(self, request: JobRequest, count: int) -> ActorGroup[Any]:
        group = super()._create_actors(replace(request, resources=replace(request.resources, cpu=0)), count)
        if in_actor():  # it runs one call at a time, and the new actors' `__init__` may call it: to wait would deadlock
            return group
        try:
            group._wait_ready(count, timeout=None)
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
"""The clients of this process's clusters of threads, by the clusters' roots."""


def client_of(cluster: StorageCluster) -> StorageClient:
    """The client of a cluster. A cluster of threads always has the same `LocalClient` in the process that made it."""
    if not isinstance(cluster, LocalCluster) or cluster.use_processes:
        return StorageClient(cluster)
    with _lock:
        known = _clients.get(cluster.root)
    return known or LocalClient(cluster=cluster)


async def _unfinished(core: Core) -> list[JobId]:
    """The unfinished jobs without actors, which do not end by themselves."""
    jobs = await all_jobs(core, problems={})
    return [JobId(job.id) for job in jobs if not is_terminal(job) and not job.spec.actor]
