"""Translates job requests into the arguments of Iris's client."""

from __future__ import annotations

from typing import Any

from fray.backends.iris.connection import AUTO
from fray.backends.iris.replica_main import run_replica
from fray.cluster.arguments import ONLY_IN_STORAGE, check_unsupported
from fray.job_spec import to_spec
from fray.types import JobRequest
from fray_layouts.errors import InvalidInput
from fray_layouts.spec import EnvironmentSpec, JobSpec, ResourceSpec

_UNSUPPORTED = {
    **dict.fromkeys(
        ("pool", "priority", "same", "spread", "health_check", "outputs", "outage", "log_limit"), ONLY_IN_STORAGE
    ),
    "namespace": "on Iris each user and each tree of jobs has its own namespace; leave it out",
    "parent": "on Iris the job that submits it is the parent; submit it from that job, and leave this out",
    "id": "jobs are found by their names: FrayIrisClient.submit adopts the unfinished one; leave it out",
}
_UNSUPPORTED_RESOURCES = {
    "labels": "Iris does not know Fray's labels; leave it out",
    "hard_cpu": "Iris does not limit cores; leave it out",
}


def submission(request: JobRequest) -> dict[str, Any]:
    """The arguments of `IrisClient.submit` for a request, except for the name.

    `grace` and `detached` have no counterpart: Iris uses its own grace period, children always end with their parent,
    and jobs that are launched outside of jobs go on when the program ends.

    Raises:
        InvalidInput: a value is wrong, or Iris does not support it.
    """
    from iris.cluster.constraints import WellKnownAttribute
    from iris.cluster.types import CoschedulingConfig

    spec = to_spec(request)
    check_unsupported(spec, _UNSUPPORTED, _UNSUPPORTED_RESOURCES, {"groups": "Iris installs extras; make it one"})
    if request.environment is not None and request.environment.workspace:
        remedy = "on Iris all jobs of a client share one: FrayIrisClient(controller, workspace=PATH)"
        raise InvalidInput("environment.workspace", request.environment.workspace, remedy)
    has_slices_of_several = 0 < spec.slices < spec.replicas
    return {
        "entrypoint": _entrypoint(spec),
        "resources": _resources(spec.resources),
        "environment": _environment(spec.environment),
        "ports": list(spec.ports) or None,
        "scheduling_timeout": _duration(spec.pending_timeout),
        "constraints": _constraints(spec.resources) or None,
        "coscheduling": CoschedulingConfig(group_by=WellKnownAttribute.TPU_NAME) if has_slices_of_several else None,
        "replicas": spec.replicas,
        "max_retries_failure": spec.max_retries_failure,
        "max_task_failures": spec.max_retries_failure,
        "max_retries_preemption": spec.max_retries_preemption,
        "timeout": _duration(spec.timeout),
        "task_image": spec.environment.docker_image or None,
    }


def _resources(asked: ResourceSpec) -> Any:
    from iris.cluster.types import ResourceSpec as IrisResources, gpu_device, tpu_device

    device = None
    if asked.device is not None and asked.device.kind == "tpu":
        device = tpu_device(asked.device.variant)
    elif asked.device is not None and asked.device.kind == "gpu":
        if asked.device.count != int(asked.device.count):
            remedy = "Iris does not share GPUs; ask for whole ones"
            raise InvalidInput("resources.device.count", asked.device.count, remedy)
        device = gpu_device(asked.device.variant, int(asked.device.count))
    return IrisResources(asked.cpu, asked.memory, asked.disk, device)


def _constraints(asked: ResourceSpec) -> list[Any]:
    from iris.cluster.constraints import (
        device_variant_constraint,
        preemptible_constraint,
        region_constraint,
        zone_constraint,
    )

    found = []
    if not asked.preemptible:
        found.append(preemptible_constraint(False))
    if asked.device is not None and asked.device_alternatives:
        found.append(device_variant_constraint([asked.device.variant, *asked.device_alternatives]))
    if asked.regions:
        found.append(region_constraint(list(asked.regions)))
    if asked.zone:
        found.append(zone_constraint(asked.zone))
    return found


def _environment(asked: EnvironmentSpec) -> Any:
    """The environment for Iris. Iris has no secret variables, so it shows these like all others."""
    from iris.cluster.types import EnvironmentSpec as IrisEnvironment

    return IrisEnvironment(
        pip_packages=list(asked.pip_packages) or None,
        env_vars={"FRAY_CLUSTER_SPEC": AUTO, **asked.env_vars, **asked.secret_env_vars},
        extras=list(asked.extras) or None,
    )


def _entrypoint(spec: JobSpec) -> Any:
    from iris.cluster.types import Entrypoint

    if spec.entrypoint.callable is not None:
        return Entrypoint.from_callable(run_replica, spec.entrypoint.callable.pickle)
    return Entrypoint.from_command(*spec.entrypoint.command)


def _duration(seconds: float | None) -> Any:
    from rigging.timing import Duration

    return None if seconds is None else Duration.from_seconds(seconds)
