"""From a `JobRequest` to the spec that is stored; `parse_spec` checks it, as it checks every spec."""

from __future__ import annotations

import base64
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import msgspec

from fray.topology import TPU_TOPOLOGIES
from fray.types import (
    ANY_REGION,
    BinaryEntrypoint,
    CallableEntrypoint,
    CpuConfig,
    DeviceConfig,
    EnvironmentConfig,
    JobRequest,
    ResourceConfig,
    TpuConfig,
    entrypoint_of,
)
from fray_layouts.bounds import MAX_CALLABLE_NAME
from fray_layouts.errors import InvalidInput
from fray_layouts.spec import JobSpec
from fray_layouts.spec_parsing import parse_spec

_LATER_RELEASE = {
    "regions": "agents do not know their region yet; use a pool for each region",
    "zone": "agents do not know their zone yet; use a pool for each zone",
    "target_cluster": "open that cluster by its root and launch there",
    "device_alternatives": "launch the job for one device",
    "image": "EnvironmentConfig(docker_image=...) names an image; leave this out",
    "container_profile": "containers have no profiles yet; leave it out",
}
"""Fields of `ResourceConfig` that this release cannot honour, and what to do instead."""

_SEVERAL_TASKS = {
    "max_task_failures": "a job is one task: max_retries_failure says how often it is tried again; leave this out",
    "processes_per_task": "the job's own program can start them; leave it out",
}
"""Fields of `JobRequest` for jobs of several tasks, and what to do instead."""

_SAME_FIELDS = (
    *("name", "max_retries_failure", "max_retries_preemption", "timeout", "pending_timeout", "grace", "priority"),
    *("namespace", "parent", "detached", "pool", "id", "actor"),
)


def to_spec(request: JobRequest) -> JobSpec:
    """Make the checked spec of a request, its callable pickled; its workspace is not packed yet.

    Raises:
        InvalidInput: a value is out of bounds, a callable cannot be pickled, or this release cannot honour a field.
    """
    for name, remedy in _SEVERAL_TASKS.items():
        if (value := getattr(request, name)) != getattr(JobRequest, name):
            raise InvalidInput(name, value, remedy)
    resources, environment = _checked_parts(request)
    fields: dict[str, Any] = {
        "entrypoint": _entrypoint(request.entrypoint),
        "resources": _resources(resources),
        "environment": _environment(environment),
        "replicas": _replicas(request),
        "ports": _texts("ports", request.ports),
        "outputs": _texts("outputs", request.outputs),
        **{name: getattr(request, name) for name in _SAME_FIELDS},
    }
    if request.health_check is not None:
        fields["health_check"] = asdict(request.health_check)
    return parse_spec({name: _plain(value) for name, value in fields.items() if value is not None})


def local_spec(request: JobRequest) -> JobSpec:
    """Make the checked spec of a request for a private cluster, without what only other machines have.

    Places, replicas, workspaces, packages and images are left out, and what `relaxed_spec` leaves out.
    """
    asked, environment = _checked_parts(request)
    spec = to_spec(
        replace(
            request,
            resources=ResourceConfig(cpu=asked.cpu, ram=asked.ram, disk=asked.disk),
            environment=EnvironmentConfig(env_vars=environment.env_vars, secret_env_vars=environment.secret_env_vars),
            replicas=1,
            max_task_failures=0,
            processes_per_task=1,
        )
    )
    return relaxed_spec(spec)


def relaxed_spec(spec: JobSpec) -> JobSpec:
    """The spec without a device and with one core at most, so that a job's children find room beside it.

    Sizes are left out too: a private cluster limits nothing.
    """
    resources = msgspec.structs.replace(spec.resources, cpu=min(spec.resources.cpu, 1), device=None, memory=0, disk=0)
    return msgspec.structs.replace(spec, resources=resources)


def _checked_parts(request: JobRequest) -> tuple[ResourceConfig, EnvironmentConfig]:
    """The request's resources and environment. Raises InvalidInput for values of other types."""
    resources: object = request.resources
    environment: object = request.environment or EnvironmentConfig()
    if not isinstance(resources, ResourceConfig):
        raise InvalidInput("resources", resources, "give a ResourceConfig")
    if not isinstance(environment, EnvironmentConfig):
        raise InvalidInput("environment", "...", "give an EnvironmentConfig")
    return resources, environment


def _entrypoint(given: object) -> dict[str, Any]:
    entrypoint = entrypoint_of(given)
    if isinstance(entrypoint, BinaryEntrypoint):
        return {"command": [entrypoint.command, *entrypoint.args]}
    if isinstance(entrypoint, CallableEntrypoint):
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        pickle = base64.b64encode(pickled(entrypoint)).decode()
        return {"callable": {"pickle": pickle, "name": _name_of(entrypoint.callable), "python": python}}
    remedy = "give a function, Entrypoint.from_callable(function, args=(...)) or Entrypoint.from_binary(program, [...])"
    raise InvalidInput("entrypoint", given, remedy)


def _name_of(function: object) -> str:
    """The name of a function, with its module unless that is the program itself; of another object, its type's."""
    named = function if hasattr(function, "__qualname__") else type(function)
    module = getattr(named, "__module__", None) or "__main__"
    name = f"{module}.{named.__qualname__}".removeprefix("__main__.")
    return name.replace("<locals>.", "")[:MAX_CALLABLE_NAME]


def pickled(call: CallableEntrypoint) -> bytes:
    """Pickle (function, args, kwargs) with cloudpickle. Raises InvalidInput, which names the part that cannot be."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps((call.callable, call.args, dict(call.kwargs)), protocol=5)
    except Exception as error:  # pickling runs the users' own __reduce__, which may raise anything
        part, value = _culprit(call)
        remedy = f"it cannot be pickled ({error}); make it inside the job instead"
        raise InvalidInput(f"entrypoint.{part}", value, remedy) from error
    return data


def _culprit(call: CallableEntrypoint) -> tuple[str, object]:
    """The smallest named part of the call that does not pickle by itself, for the error."""
    parts: dict[str, object] = {f"args[{i}]": arg for i, arg in enumerate(call.args)}
    parts |= {f"kwargs[{name!r}]": value for name, value in call.kwargs.items()}
    if inspect.isfunction(call.callable):
        used = inspect.getclosurevars(call.callable)
        outside = {**used.globals, **used.nonlocals}
        parts |= {f"callable, which uses {name!r}": value for name, value in outside.items()}
    return next(((part, value) for part, value in parts.items() if not _pickles(value)), ("callable", call.callable))


def _pickles(value: object) -> bool:
    import cloudpickle

    try:
        cloudpickle.dumps(value)
    except Exception:  # see `pickled`
        return False
    return True


def _resources(resources: ResourceConfig) -> dict[str, Any]:
    if isinstance(resources.cpu, DeviceConfig):
        raise InvalidInput("resources.cpu", resources.cpu, "cores come first; give device= and the others by name")
    for name, remedy in _LATER_RELEASE.items():
        if (value := getattr(resources, name)) and list(value) != [ANY_REGION]:
            raise InvalidInput(f"resources.{name}", value, remedy)
    return {
        "cpu": resources.cpu,
        "hard_cpu": resources.hard_cpu,
        "memory": resources.ram,
        "disk": resources.disk,
        "preemptible": resources.preemptible,
        "device": _device(resources.device),
    }


def _device(device: DeviceConfig) -> dict[str, Any] | None:
    if isinstance(device, CpuConfig):
        return None
    count = _chips(device) if isinstance(device, TpuConfig) else device.count
    return {"kind": device.kind, "variant": "" if device.variant == "auto" else device.variant, "count": count}


def _chips(device: TpuConfig) -> int:
    """The chips of a slice of one host; of an unknown type, the count. InvalidInput for a slice of several hosts."""
    if device.topology is not None:
        raise InvalidInput("resources.device.topology", device.topology, "the variant names it; leave it out")
    info = TPU_TOPOLOGIES.get(device.variant)
    if info is None:
        return device.count
    if info.vm_count > 1:
        remedy = f"a slice of it is {info.vm_count} hosts; until gangs come in a later release, take a type of one host"
        raise InvalidInput("resources.device.variant", device.variant, remedy)
    if device.count not in (1, info.chips_per_vm):
        remedy = f"a job has all {info.chips_per_vm} chips of its host; leave it out"
        raise InvalidInput("resources.device.count", device.count, remedy)
    return info.chips_per_vm


def _plain(value: object) -> object:
    """The value with a `JobId`, or text of any other subclass, as text itself, which is what records hold."""
    match value:
        case str():
            return str(value)
        case dict():
            return {_plain(name): _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
    return value


def _texts(field: str, given: Sequence[str]) -> list[str]:
    if isinstance(given, (str, Mapping)):
        raise InvalidInput(field, given, "give a list of texts")
    return list(given)


def _environment(environment: EnvironmentConfig) -> dict[str, Any]:
    given: Mapping[str, Any] = {
        "env_vars": dict(environment.env_vars),
        "secret_env_vars": dict(environment.secret_env_vars),
        "extras": list(environment.extras),
        "pip_packages": list(environment.pip_packages),
        "docker_image": environment.docker_image,
    }
    return {name: value for name, value in given.items() if value}


def _replicas(request: JobRequest) -> int:
    asked = {request.replicas, request.resources.replicas} - {1}
    if len(asked) > 1:
        other = f"resources.replicas says {request.resources.replicas} (with_tpu counts the virtual machines there)"
        raise InvalidInput("replicas", request.replicas, f"{other}; leave one of the two out")
    return asked.pop() if asked else 1
