"""Actors that own their name: at most one of a name lives in a namespace, and programs can look it up."""

import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from fray.actor.caller import ActorAddress
from fray.actor.create import actor_namespace, actor_request, launch_named
from fray.actor.handle import ActorHandle
from fray.actor.storage_actors import StorageActorHandle
from fray.cluster.api import Cluster
from fray.cluster.current import storage_cluster
from fray.cluster.storage import StorageCluster
from fray.errors import InvalidInput
from fray.types import ActorConfig, JobRequest, JobStatus, ResourceConfig
from fray_coordinator.actors import naming
from fray_layouts.spec_parsing import check_name

__all__ = ["actor_status", "create_named_actor", "delete_actor", "find_named_actor"]

T = TypeVar("T")
Lifetime = Literal["non_detached", "detached"]


def create_named_actor(
    cluster: Cluster,
    cls: type[T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str | None,
    get_if_exists: bool = False,
    lifetime: Lifetime = "non_detached",
    preemptible: bool = True,
    num_cpus: float | None = None,
) -> StorageActorHandle[T]:
    """Create an actor that owns `name`, or find it; returns at once.

    Args:
        name: None gives the actor a random name.
        get_if_exists: if the name is taken, return a handle of its owner; the other arguments are ignored then.
        lifetime: a "detached" actor outlives the job, or the program, that creates it.
        preemptible: False keeps the actor off hosts that the cloud may take away.
        num_cpus: cores that it reserves; by default none.

    Raises:
        NameTaken: another actor has the name, and `get_if_exists` is False. It is a ValueError.
        InvalidInput: an argument is wrong or cannot be pickled, or the cluster is not in storage; nothing was created.
    """
    request = named_actor_request(cls, args, kwargs or {}, name, lifetime, preemptible, num_cpus)
    return create_requested_actor(storage_cluster(cluster), request, get_if_exists)


def create_requested_actor(
    cluster: StorageCluster, request: JobRequest, get_if_exists: bool
) -> StorageActorHandle[Any]:
    """Create the actor of a `named_actor_request`, or find it. Raises as `create_named_actor`."""
    namespace = actor_namespace(cluster, request)
    return _handle(cluster, namespace, request.name, launch_named(cluster, request, namespace, get_if_exists))


def named_actor_request(
    cls: type,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    name: str | None,
    lifetime: Lifetime,
    preemptible: bool,
    num_cpus: float | None,
) -> JobRequest:
    """The request for an actor that owns its name. Without a name it gets a random one.

    Raises InvalidInput if an argument is wrong.
    """
    if lifetime not in ("non_detached", "detached"):
        raise InvalidInput("lifetime", lifetime, "say 'non_detached' or 'detached'")
    resources = ResourceConfig(cpu=num_cpus or 0, preemptible=preemptible)
    own_name = name or f"actor-{secrets.token_hex(4)}"
    config = ActorConfig(detached=lifetime == "detached")
    return actor_request(cls, args, kwargs, own_name, config, resources)


def find_named_actor(cluster: Cluster, name: str) -> StorageActorHandle[Any] | None:
    """Find the actor that owns the name now. Returns its handle, or None if there is no such actor.

    Looks in the cluster's namespace, then in its `lasting_namespace`, which has detached actors of earlier programs.
    """
    check_name("name", name)
    stored = storage_cluster(cluster)
    for namespace in dict.fromkeys([stored.namespace, stored.lasting_namespace]):
        record = stored.run(partial(naming.read_held, namespace=namespace, kind="actor", name=name))
        if record is not None:
            return _handle(stored, namespace, name, record.job)
    return None


def delete_actor(handle: ActorHandle[Any]) -> None:
    """Ask the actor to end, and return at once. Its name is free now, and later calls from this process fail."""
    handle._shut_down("was deleted")


def actor_status(handle: ActorHandle[Any]) -> JobStatus:
    return handle._status()


def _handle(cluster: StorageCluster, namespace: str, name: str, job: str) -> StorageActorHandle[Any]:
    return StorageActorHandle(cluster, ActorAddress(namespace, name, job, job))
