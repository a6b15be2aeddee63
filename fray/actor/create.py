"""The creation of actors as jobs, alone or in groups."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from fray.actor.config import validated
from fray.actor.group import ActorGroup
from fray.actor.hosting import GRACE, serve_actor
from fray.cluster.storage import StorageCluster
from fray.types import ActorConfig, Entrypoint, EnvironmentConfig, JobRequest, ResourceConfig
from fray_layouts.bounds import MAX_ATTEMPTS
from fray_layouts.errors import InvalidInput
from fray_layouts.spec_checks import check_name

T = TypeVar("T")


def create_actors(cluster: StorageCluster, request: JobRequest, count: int) -> ActorGroup[Any]:
    """Create actors as jobs "<name>-0", "<name>-1" ...; returns at once.

    They end with the job, or the program outside of jobs, that creates them, unless the request says `detached`. Each
    creation is one of its own, whatever had the name before.

    Args:
        request: of `actor_request`.

    Raises:
        InvalidInput: an argument is wrong or cannot be pickled; nothing was created.
        ParentNotRunning: somebody has stopped this job, or this program's (see `StorageCluster.owner`).
    """
    if count < 1:
        raise InvalidInput("count", count, "give at least 1")
    if not request.detached:
        request = replace(request, parent=cluster.owner())
    jobs = cluster.launch_many([replace(request, name=f"{request.name}-{index}") for index in range(count)])
    return ActorGroup(cluster, cluster.namespace, request.name, jobs)


def actor_request(
    cls: type,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    name: str,
    config: ActorConfig | None = None,
    resources: ResourceConfig | None = None,
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
        entrypoint=Entrypoint.from_callable(serve_actor, (cls, tuple(args), dict(kwargs), name, config)),
        resources=ResourceConfig(cpu=0) if resources is None else resources,
        environment=environment,
        max_retries_failure=restarts,
        max_retries_preemption=restarts,
        grace=GRACE,
        priority=config.priority,
        detached=config.detached,
        actor=True,
    )
