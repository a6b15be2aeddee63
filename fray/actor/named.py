"""Actors that own their name: at most one of a name lives in a namespace, and others can ask for it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec

from fray.actor.address import ActorAddress
from fray.actor.create import actor_request
from fray.actor.handle import ActorHandle
from fray.actor.hosting import INCARNATION_VARIABLE
from fray.cluster.current_job import CurrentJob, current_job_on
from fray.cluster.storage import StorageCluster
from fray.errors import InvalidInput
from fray.types import ActorConfig, JobId, JobStatus, ResourceConfig
from fray_coordinator.actors import naming
from fray_coordinator.core import Core
from fray_coordinator.jobs.submission import submit
from fray_layouts import object_keys
from fray_layouts.spec import JobSpec

__all__ = ["actor_status", "create_named_actor", "delete_actor", "find_named_actor"]

T = TypeVar("T")
Lifetime = Literal["non_detached", "detached"]


def create_named_actor(
    cluster: StorageCluster,
    cls: type[T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str,
    get_if_exists: bool = False,
    lifetime: Lifetime = "non_detached",
    preemptible: bool = True,
    num_cpus: float | None = None,
    actor_config: ActorConfig | None = None,
) -> ActorHandle[T]:
    """Create the actor that has `name`, or find it; returns at once.

    Args:
        get_if_exists: if the name is taken, return the handle of whoever has it; the other arguments are ignored then.
        lifetime: a "detached" actor outlives the job, or the program, that creates it; so says `actor_config`.
        preemptible: False keeps it off hosts that may be taken away.
        num_cpus: cores it reserves; by default none.

    Raises:
        NameTaken: somebody has the name, which is a ValueError.
        InvalidInput: an argument is wrong or cannot be pickled; nothing was created.
    """
    if lifetime not in ("non_detached", "detached"):
        raise InvalidInput("lifetime", lifetime, "say 'non_detached' or 'detached'")
    resources = ResourceConfig(cpu=num_cpus or 0, preemptible=preemptible)
    request = actor_request(cls, args, kwargs or {}, name, actor_config, resources)
    detached = request.detached or lifetime == "detached"
    parent = None if detached else cluster.owner()
    request = replace(request, name=f"{name}-0", detached=detached, parent=parent)
    mine = current_job_on(cluster.root)
    (spec,) = cluster.specs([request], mine)
    job = cluster.run(partial(_create, spec=spec, name=name, mine=mine, exist_ok=get_if_exists))
    return _handle(cluster, name, job)


def find_named_actor(cluster: StorageCluster, name: str) -> ActorHandle[Any] | None:
    """A handle of the actor that has the name now; None if nobody has it."""
    record = cluster.run(lambda core: naming.read_held(core, cluster.namespace, "actor", name))
    return _handle(cluster, name, record.job) if record is not None else None


def delete_actor(handle: ActorHandle[Any]) -> None:
    """Ask that the actor end; returns at once. Its name is free, and calls of this process fail from now on."""
    handle._cluster.terminate(JobId(handle._address.job))
    handle._end("was deleted")


def actor_status(handle: ActorHandle[Any]) -> JobStatus:
    return handle._cluster.poll(JobId(handle._address.job)).status


def _handle(cluster: StorageCluster, name: str, job: str) -> ActorHandle[Any]:
    return ActorHandle(cluster, ActorAddress(cluster.namespace, name, job, job))


async def _create(core: Core, spec: JobSpec, name: str, mine: CurrentJob | None, exist_ok: bool) -> str:
    """The id of the job that has the name, which was created or found."""
    job = object_keys.JobIds.fresh(spec.name, core.now(), core.rng.token())
    record = await naming.take_name(core, spec.namespace, "actor", name, job, exist_ok)
    if record.job == job:
        variables = {**spec.environment.env_vars, INCARNATION_VARIABLE: str(record.incarnation)}
        environment = msgspec.structs.replace(spec.environment, env_vars=variables)
        attempt = mine.attempt if mine is not None and spec.parent == mine.job_id else None
        await submit(core, [msgspec.structs.replace(spec, environment=environment)], attempt, [job])
    return record.job
