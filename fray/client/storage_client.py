"""`StorageClient`: the client of a cluster in storage. It submits jobs by name and creates actors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from fray.call_forms import says_form
from fray.client.api import Client
from fray.cluster.api import Cluster
from fray.cluster.arguments import SUBMIT, checked_request
from fray.cluster.current import storage_cluster
from fray.cluster.job_handle import JobAlreadyExists, JobHandle
from fray.cluster.storage import StorageCluster
from fray.types import ActorConfig, JobId, JobRequest
from fray_coordinator.actors import naming
from fray_coordinator.core import Core
from fray_layouts import object_keys
from fray_layouts.spec_parsing import check_name, check_namespace

if TYPE_CHECKING:
    from fray.actor.create import HostedActor
    from fray.actor.group import ActorGroup
    from fray.actor.handle import ActorHandle

T = TypeVar("T")


class StorageClient(Client):
    """The client of a cluster in storage. Pickles as the cluster's root and namespace.

    Args:
        cluster: the cluster, or its root: `gs://bucket/prefix`, `s3://bucket/prefix`, a path, or `memory://name`. Jobs
            and actors are named in its namespace.

    Raises:
        InvalidInput: the cluster is not in storage.
    """

    def __init__(self, cluster: Cluster | str) -> None:
        self._cluster = StorageCluster(cluster) if isinstance(cluster, str) else storage_cluster(cluster)

    @property
    def cluster(self) -> StorageCluster:
        return self._cluster

    @says_form(SUBMIT)
    def submit(self, request: JobRequest, adopt_existing: bool = True) -> JobHandle:
        namespace = checked_request(request).namespace or self._cluster.namespace
        if request.id is not None:
            return JobHandle(self._cluster, self._cluster.launch(request))
        job_id, taken = self._cluster.run(lambda core: _take_name(core, namespace, request.name))
        if taken and not adopt_existing:
            raise JobAlreadyExists(request.name, JobHandle(self._cluster, job_id))
        own_id = object_keys.JobIds.own(request.name, job_id)
        return JobHandle(self._cluster, self._cluster.launch(replace(request, id=own_id, namespace=namespace)))

    def _create_actors(self, request: JobRequest, count: int) -> ActorGroup[Any]:
        from fray.actor.create import create_actors

        return create_actors(self._cluster, request, count)

    def host_actor(
        self, actor_class: type[T], *args: Any, name: str, actor_config: ActorConfig | None = None, **kwargs: Any
    ) -> HostedActor[T]:
        from fray.actor.create import host_actor

        return host_actor(self._cluster, actor_class, args, kwargs, name, actor_config)

    def _find_actor(self, name: str) -> ActorHandle[Any] | None:
        from fray.actor.named import find_named_actor

        return find_named_actor(self._cluster, name)

    def shutdown(self, wait: bool = True) -> None:
        self._cluster.close()


async def _take_name(core: Core, namespace: str, name: str) -> tuple[JobId, bool]:
    """The id to submit a job of this name with, and whether another submitter chose that id.

    The id is written to the name's record before the job exists. If a submitter finds there the id of a job that does
    not exist yet, because the other submitter is slow or died, it submits with that id. A job's record is created only
    if it is absent, so all submitters end up with one job.
    """
    check_namespace(namespace)
    check_name("name", name)
    fresh = object_keys.JobIds.unique(namespace, name, core.now(), core.rng.token())
    holder = await naming.read_held(core, namespace, "job", name)
    if holder is None:
        holder = await naming.take_name(core, namespace, "job", name, fresh, exist_ok=True)
    return JobId(holder.job), holder.job != fresh
