"""Creates actors as jobs, one or a group."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from fray.actor.config import validated
from fray.actor.hosting import GRACE, serve_actor
from fray.actor.storage_group import StorageActorGroup
from fray.cluster.api import Cluster
from fray.cluster.storage import StorageCluster
from fray.entrypoints import NamedEntrypoint
from fray.job_spec import callable_name
from fray.types import (
    ActorConfig,
    CallableEntrypoint,
    EnvironmentConfig,
    JobId,
    JobRequest,
    Namespace,
    ResourceConfig,
)
from fray_coordinator.actors import naming
from fray_coordinator.core import Core
from fray_layouts.bounds import MAX_ATTEMPTS
from fray_layouts.errors import InvalidInput, Permanent
from fray_layouts.object_keys import JobIds
from fray_layouts.records import NameRecord
from fray_layouts.spec_checks import check_name

T = TypeVar("T")


def create_actors(cluster: StorageCluster, request: JobRequest, count: int) -> StorageActorGroup[Any]:
    """Create actors as jobs "<name>-0", "<name>-1" ...; returns at once.

    They end with the job, or the program outside of jobs, that creates them, unless the request says `detached`. Each
    call creates new actors, even if others had the name before. Only a detached actor that is not in a group owns its
    name.

    Args:
        request: made by `actor_request`.
        count: at least 1.

    Raises:
        InvalidInput: an argument is wrong or cannot be pickled; nothing was created.
        NameTaken: one detached actor was asked for, and another detached actor of that name lives.
        ParentNotRunning: somebody has stopped this job, or the job that stands for this program
            (`StorageCluster.owner`).
    """
    namespace = actor_namespace(cluster, request)
    if request.detached and count == 1:
        return StorageActorGroup(cluster, namespace, request.name, [launch_named(cluster, request, namespace)])
    parent = None if request.detached else cluster.owner()
    requests = [
        replace(request, name=f"{request.name}-{index}", namespace=namespace, parent=parent) for index in range(count)
    ]
    return StorageActorGroup(cluster, namespace, request.name, cluster.launch_many(requests))


def launch_named(cluster: StorageCluster, request: JobRequest, namespace: Namespace, exist_ok: bool = False) -> JobId:
    """Take the request's name and launch the actor's job. With `exist_ok`, return the job of the name's holder if any.

    Raises:
        NameTaken: another actor has the name, and `exist_ok` is False.
        InvalidInput, ParentNotRunning: as `create_actors`.
    """
    parent = None if request.detached else cluster.owner()
    name = f"{request.name}-0"
    found, job = cluster.run(lambda core: _take_name(core, namespace, request.name, name, exist_ok))
    if found.job != job:
        return JobId(found.job)
    serve = _serving_call(request)
    entrypoint = replace(serve, args=(*serve.args, True))
    own_id = JobIds.own(name, job)
    try:
        return cluster.launch(
            replace(request, name=name, id=own_id, namespace=namespace, parent=parent, entrypoint=entrypoint)
        )
    except (InvalidInput, Permanent):
        cluster.run(lambda core: naming.free_name(core, namespace, "actor", request.name, found.incarnation))
        raise


async def _take_name(core: Core, namespace: str, name: str, job_name: str, exist_ok: bool) -> tuple[NameRecord, str]:
    """Take the name if it is free. Returns the name's record, and the id of the job that it was to be taken for."""
    job = JobIds.unique(namespace, job_name, core.now(), core.rng.token())
    return await naming.take_name(core, namespace, "actor", name, job, exist_ok), job


class RequestedActor(NamedTuple):
    """The actor that a request of `actor_request` asks for."""

    cls: type
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str
    config: ActorConfig


def requested_actor(request: JobRequest) -> RequestedActor:
    """The actor that a request of `actor_request` asks for, for backends that serve it in another way."""
    return RequestedActor(*_serving_call(request).args)


def actor_namespace(cluster: Cluster, request: JobRequest) -> Namespace:
    """The namespace of a requested actor's name."""
    return cluster.lasting_namespace if request.detached else cluster.namespace


def _serving_call(request: JobRequest) -> CallableEntrypoint:
    call = request.entrypoint
    assert isinstance(call, CallableEntrypoint), "as `actor_request` makes it"
    return call


def actor_request(
    cls: type,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    name: str,
    config: ActorConfig | None = None,
    resources: ResourceConfig | None = None,
    environment: EnvironmentConfig | None = None,
    shown_as: str | None = None,
) -> JobRequest:
    """The request for the job that serves an actor. Its name still lacks the actor's number in its group.

    shown_as: what `fray status` says that the job runs; None: the actor's class.
    """
    check_name("name", name)
    if not callable(cls):
        raise InvalidInput("actor_class", cls, "give a class")
    config = validated(config or ActorConfig())
    restarts = MAX_ATTEMPTS if config.max_restarts is None else config.max_restarts
    return JobRequest(
        name=name,
        entrypoint=NamedEntrypoint(
            serve_actor, (cls, tuple(args), dict(kwargs), name, config), name=shown_as or f"actor {callable_name(cls)}"
        ),
        resources=ResourceConfig(cpu=0) if resources is None else resources,
        environment=environment,
        max_retries_failure=restarts,
        max_retries_preemption=restarts,
        grace=GRACE,
        priority=config.priority,
        detached=config.detached,
        actor=True,
        outage="run" if config.outage == "run" else "",
    )
