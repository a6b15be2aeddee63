"""`RayClient`: submits jobs by name and creates actors on Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from fray.backends.ray.actor_create import create_actors, end_owned, find_named_actor, host_actor
from fray.backends.ray.connection import AUTO
from fray.backends.ray.jobs import RayJobs
from fray.call_forms import says_form
from fray.client.api import Client
from fray.cluster.api import Cluster
from fray.cluster.arguments import SUBMIT, checked_request
from fray.cluster.job_handle import JobAlreadyExists, JobHandle
from fray.errors import InvalidInput
from fray.types import ActorConfig, JobRequest

if TYPE_CHECKING:
    from fray.actor.create import HostedActor
    from fray.actor.group import ActorGroup
    from fray.actor.handle import ActorHandle

T = TypeVar("T")


class RayClient(Client):
    """The client of a Ray. It pickles as its cluster's root and namespace.

    Jobs are those of `RayJobs`. Actors are Ray's own, so that calls go directly from worker to worker.

    Args:
        cluster: a `RayJobs`, or a root: "ray:auto" is the Ray that this process is connected to or runs in, else that
            of RAY_ADDRESS or of this machine; "ray:host:6379"; or "ray://host:10001" from outside of its network.

    Raises:
        InvalidInput: the cluster is not on Ray, or is reached through Ray's job submission API only.
    """

    def __init__(self, cluster: Cluster | str = AUTO) -> None:
        opened = RayJobs(cluster) if isinstance(cluster, str) else cluster
        if not isinstance(opened, RayJobs):
            remedy = "it does not support actors; name a Ray, such as ray:auto or ray:HOST:PORT"
            raise InvalidInput("cluster", opened.root, remedy)
        self._cluster = opened

    @property
    def cluster(self) -> RayJobs:
        return self._cluster

    @says_form(SUBMIT)
    def submit(self, request: JobRequest, adopt_existing: bool = True) -> JobHandle:
        job_id, found = self._cluster.submit_named(checked_request(request))
        handle = JobHandle(self._cluster, job_id)
        if found and not adopt_existing and request.id is None:
            raise JobAlreadyExists(request.name, handle)
        return handle

    def _create_actors(self, request: JobRequest, count: int) -> ActorGroup[Any]:
        return create_actors(self._cluster, request, count)

    def host_actor(
        self, actor_class: type[T], *args: Any, name: str, actor_config: ActorConfig | None = None, **kwargs: Any
    ) -> HostedActor[T]:
        return host_actor(self._cluster, actor_class, args, kwargs, name, actor_config)

    def _find_actor(self, name: str) -> ActorHandle[Any] | None:
        """Find the actor that owns the name, and return its handle once it serves calls.

        Raises ActorUnavailableError if the actor ends before it serves calls.
        """
        return find_named_actor(self._cluster, name)

    def shutdown(self, wait: bool = True) -> None:
        end_owned()
        self._cluster.close()
