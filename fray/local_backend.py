"""`LocalClient`: the client for development, whose jobs and actors are threads of this process."""

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

    Objects are passed as they are where that is possible:

    - A job's function and arguments, and those of an actor's class, are the caller's own objects, pickled or not.
    - Arguments and results of calls of actors are pickled, as on every cluster; what cannot be pickled goes as it is.
    - Results of jobs are pickled.

    Commands are processes. Devices, regions, workspaces, packages and images are accepted and not looked at, and a gang
    has all of its replicas, so a program that asks for a TPU is tried out here as it stands. `create_actor` and
    `create_actor_group` return when the actors serve calls, and raise what their `__init__` raises; within an actor
    they return at once, because their `__init__` may call the actor that creates them. Pickled, the client is itself in
    the process that made it, and a `StorageClient` elsewhere.

    Threads of one process cannot be kept apart as processes are:

    - Variables that a job or an actor asks for are set in `os.environ` while it runs, for the whole process. A job that
      asks for another value than a running one fails, and says so.
    - `logs()` has what a job's own thread, its coroutines and an actor's calls print to `sys.stdout` and `sys.stderr`;
      the process prints it as well. Output of threads and processes that a job starts, and of `logging` handlers that
      were made before the job ran, is not kept.
    - A process that a callable starts does not know the job, and works with a `LocalClient` of its own.
    - A thread cannot be killed: one that does not end when it is stopped goes on until it returns.

    Args:
        max_threads: jobs that run at once, the others wait; by default any number. Jobs that `LocalCluster` does not
            count are not limited.
        cluster: a `LocalCluster` of threads that is open already, instead of one of the client's own: made with
            `use_processes=False`, or `threads` of one of processes.
    """

    def __init__(self, max_threads: int | None = None, *, cluster: LocalCluster | None = None) -> None:
        super().__init__(cluster or LocalCluster(max_workers=max_threads, use_processes=False))
        with _lock:
            _clients.setdefault(self.cluster.root, self)

    def _create_actors(self, request: JobRequest, count: int) -> ActorGroup[Any]:
        group = super()._create_actors(replace(request, resources=replace(request.resources, cpu=0)), count)
        if in_actor():  # whose calls run one at a time, and whom the new actors' `__init__` may call
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
"""The clients of this process's clusters of threads, by root."""


def client_of(cluster: StorageCluster) -> StorageClient:
    """The client of a cluster; of a cluster of threads always the same `LocalClient`, in the process that made it."""
    if not isinstance(cluster, LocalCluster) or cluster.use_processes:
        return StorageClient(cluster)
    with _lock:
        known = _clients.get(cluster.root)
    return known or LocalClient(cluster=cluster)


async def _unfinished(core: Core) -> list[JobId]:
    """The unfinished jobs that end by themselves, which actors do not."""
    jobs = await all_jobs(core, problems={})
    return [JobId(job.id) for job in jobs if not is_terminal(job) and not job.spec.actor]
