"""The creation of actors: as jobs, alone or in groups, or in this process."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from fray.actor.config import validated
from fray.actor.group import ActorGroup
from fray.actor.hosting import GRACE, HostedActor, host, serve_actor
from fray.cluster.storage import StorageCluster
from fray.types import ActorConfig, Entrypoint, EnvironmentConfig, JobRequest, ResourceConfig
from fray_layouts.bounds import MAX_ATTEMPTS
from fray_layouts.errors import InvalidInput
from fray_layouts.spec import check_name

T = TypeVar("T")


def create_actor_group(
    cluster: StorageCluster,
    cls: type[T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str,
    count: int,
    resources: ResourceConfig | None = None,
    actor_config: ActorConfig | None = None,
    environment: EnvironmentConfig | None = None,
) -> ActorGroup[T]:
    """Create actors `cls(*args, **kwargs)` as jobs "<name>-0", "<name>-1" ...; returns at once.

    They end with the job, or the program outside of jobs, that creates them, unless `actor_config` says `detached`.
    Each creation is one of its own, whatever had the name before.

    Raises:
        InvalidInput: an argument is wrong or cannot be pickled; nothing was created.
        ParentNotRunning: somebody has stopped this job, or this program's (see `StorageCluster.owner`).
    """
    if count < 1:
        raise InvalidInput("count", count, "give at least 1")
    request = actor_request(cls, args, kwargs, name, actor_config, resources, environment)
    if not request.detached:
        request = replace(request, parent=cluster.owner())
    jobs = cluster.launch_many([replace(request, name=f"{name}-{index}") for index in range(count)])
    return ActorGroup(cluster, cluster.namespace, name, jobs)


def actor_request(
    cls: type,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    name: str,
    config: ActorConfig | None,
    resources: ResourceConfig | None,
    environment: EnvironmentConfig | None = None,
) -> JobRequest:
    """The request for the job that serves an actor; its name still lacks the actor's number."""
    check_name("name", name)
    if not callable(cls):
        raise InvalidInput("actor_class", cls, "give a class")
    config = validated(config or ActorConfig())
    restarts = MAX_ATTEMPTS if config.max_restarts is None else config.max_restarts
    return JobRequest(
        name=name,
        entrypoint=Entrypoint.from_callable(serve_actor, (cls, tuple(args), dict(kwargs or {}), name, config)),
        resources=ResourceConfig(cpu=0) if resources is None else resources,
        environment=environment,
        max_retries_failure=restarts,
        max_retries_preemption=restarts,
        grace=GRACE,
        priority=config.priority,
        detached=config.detached,
        actor=True,
    )


def host_actor(
    cluster: StorageCluster,
    cls: type[T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str,
    actor_config: ActorConfig | None = None,
) -> HostedActor[T]:
    """Create an actor in this process and serve it, until `shutdown` or the end of the process.

    Raises:
        Exception: what its `__init__` raised.
        InvalidInput: an argument is wrong.
    """
    check_name("name", name)
    config = validated(actor_config or ActorConfig())
    if config.checkpoint is not None:
        raise InvalidInput(
            "actor_config.checkpoint", config.checkpoint, "only an actor with a job of its own is durable"
        )
    return host(cluster, cls, args, kwargs or {}, name, config)
