"""Converts a `JobRequest` to the spec that is stored. `parse_spec` checks it like every spec."""

from __future__ import annotations

import base64
import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fray.entrypoints import NamedEntrypoint, entrypoint_of
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
)
from fray_layouts.bounds import MAX_CALLABLE_NAME
from fray_layouts.errors import InvalidInput
from fray_layouts.spec import JobSpec
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.topology import get_tpu_topology
from fray_layouts.units import format_bytes
from fray_runtime.pickling import OWN_PYTHON, pickled_by_value

log = logging.getLogger("fray")

_LARGE_CALL = 20_000_000
"""Bytes of a pickled call above which a warning is logged: it may take seconds to store, and each job stores it."""

LATER_RELEASE = {
    "target_cluster": "open that cluster by its root and launch there",
    "image": "EnvironmentConfig(docker_image=...) names an image; leave this out",
    "container_profile": "containers have no profiles yet; leave it out",
}
"""Fields of `ResourceConfig` that this release does not support, and what to do instead."""

_SEVERAL_TASKS = {
    "max_task_failures": "a job is one task, and max_retries_failure says how often it is retried; leave this out",
    "processes_per_task": "the job's own program can start them; leave it out",
}
"""Fields of `JobRequest` for jobs of several tasks, and what to do instead."""

_SAME_FIELDS = (
    *("name", "max_retries_failure", "max_retries_preemption", "timeout", "pending_timeout", "grace", "priority"),
    *("namespace", "parent", "detached", "pool", "id", "actor", "spread", "same", "outage", "log_limit"),
)


def to_spec(request: JobRequest) -> JobSpec:
    """Make the checked spec of a request, with its callable pickled. Its workspace is not packed yet.

    Raises:
        InvalidInput: a value is out of bounds, a callable cannot be pickled, or this release does not support a field.
    """
    for name, remedy in _SEVERAL_TASKS.items():
        if (value := getattr(request, name)) != getattr(JobRequest, name):
            raise InvalidInput(name, value, remedy)
    resources, environment = checked_parts(request)
    fields: dict[str, Any] = {
        "entrypoint": _entrypoint(request.entrypoint),
        "resources": _resources(resources),
        "environment": _environment(environment),
        **gang_size(resources, request.replicas),
        "ports": _texts("ports", request.ports),
        "outputs": _texts("outputs", request.outputs),
        **{name: getattr(request, name) for name in _SAME_FIELDS},
    }
    if request.health_check is not None:
        fields["health_check"] = asdict(request.health_check)
    return parse_spec({name: _plain(value) for name, value in fields.items() if value is not None})


def checked_parts(request: JobRequest) -> tuple[ResourceConfig, EnvironmentConfig]:
    """The request's resources and environment. Raises InvalidInput if they are of other types."""
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
        data, name = pickled(entrypoint), call_name(entrypoint)
        if len(data) > _LARGE_CALL:
            size = f"the call of {name} has {format_bytes(len(data))} with its arguments and what it uses"
            log.warning("%s; each job stores this again: write large data to storage once, and pass its path", size)
        return {"callable": {"pickle": base64.b64encode(data).decode(), "name": name, "python": OWN_PYTHON}}
    remedy = "give a function, Entrypoint.from_callable(function, args=(...)) or Entrypoint.from_binary(program, [...])"
    raise InvalidInput("entrypoint", given, remedy)


def call_name(call: CallableEntrypoint) -> str:
    """The name of a call, for people."""
    name = call.name if isinstance(call, NamedEntrypoint) else callable_name(call.callable)
    return name[:MAX_CALLABLE_NAME]


def callable_name(function: object) -> str:
    """The name of a function, or of another object's type, with its module unless that is `__main__`."""
    named = function if hasattr(function, "__qualname__") else type(function)
    module = getattr(named, "__module__", None) or "__main__"
    return f"{module}.{named.__qualname__}".removeprefix("__main__.").replace("<locals>.", "")


def pickled(call: CallableEntrypoint) -> bytes:
    """Pickle (function, args, kwargs) with cloudpickle. Raises InvalidInput, which names the part that cannot be."""
    try:
        return pickled_by_value((call.callable, call.args, dict(call.kwargs)))
    except Exception as error:  # pickling runs the users' own __reduce__, which may raise anything
        part, value = _culprit(call)
        remedy = f"it cannot be pickled ({error}); make it inside the job instead"
        raise InvalidInput(f"entrypoint.{part}", value, remedy) from error


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
    try:
        pickled_by_value(value)
    except Exception:  # see `pickled`
        return False
    return True


def _resources(resources: ResourceConfig) -> dict[str, Any]:
    if isinstance(resources.cpu, DeviceConfig):
        raise InvalidInput("resources.cpu", resources.cpu, "the first argument is the cores; give a device by device=")
    for name, remedy in LATER_RELEASE.items():
        if value := getattr(resources, name):
            raise InvalidInput(f"resources.{name}", value, remedy)
    regions = _texts("resources.regions", resources.regions or ())
    return {
        "cpu": resources.cpu,
        "hard_cpu": resources.hard_cpu,
        "memory": resources.ram,
        "disk": resources.disk,
        "preemptible": resources.preemptible,
        "device": device_fields(resources.device),
        "device_alternatives": _alternatives(resources),
        "regions": [] if ANY_REGION in regions else regions,
        "zone": resources.zone or "",
        "labels": _labels(resources.labels or {}),
    }


def _labels(given: object) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise InvalidInput("resources.labels", given, "give names with their values, such as {'disk': 'ssd'}")
    return dict(given)


def _alternatives(resources: ResourceConfig) -> list[str]:
    """The device variants that will do as well. Raises InvalidInput if TPU types among them differ in shape."""
    others = _texts("resources.device_alternatives", resources.device_alternatives or ())
    if isinstance(resources.device, TpuConfig):
        ResourceConfig.with_tpu([resources.device.variant, *others])
    return others


def device_fields(device: DeviceConfig) -> dict[str, Any] | None:
    """The spec's field `device`; None for CPUs only. Raises InvalidInput if there is no such slice type."""
    if isinstance(device, CpuConfig):
        return None
    count = _chips(device) if isinstance(device, TpuConfig) else device.count
    return {"kind": device.kind, "variant": "" if device.variant == "auto" else device.variant, "count": count}


def _chips(device: TpuConfig) -> int:
    """The number of chips of one host of a slice. Raises InvalidInput if there is no such slice type."""
    if device.topology is not None:
        raise InvalidInput("resources.device.topology", device.topology, "the variant determines it; leave it out")
    info = get_tpu_topology(device.variant)
    if device.count not in (1, info.chips_per_vm):
        remedy = f"a process always has all {info.chips_per_vm} chips of its host; leave it out"
        raise InvalidInput("resources.device.count", device.count, remedy)
    return info.chips_per_vm


def _plain(value: object) -> object:
    """Convert subclasses of str, such as `JobId`, to str itself, since records hold only plain strings."""
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
        raise InvalidInput(field, given, "give a list of strings")
    return list(given)


def _environment(environment: EnvironmentConfig) -> dict[str, Any]:
    given: Mapping[str, Any] = {
        "env_vars": dict(environment.env_vars),
        "secret_env_vars": dict(environment.secret_env_vars),
        "extras": list(environment.extras),
        "groups": list(environment.groups),
        "pip_packages": list(environment.pip_packages),
        "docker_image": environment.docker_image,
    }
    return {name: value for name, value in given.items() if value}


def gang_size(resources: ResourceConfig, replicas: int = 1) -> dict[str, int]:
    """The spec's fields `replicas`, the number of processes of the gang, and `slices`, the whole TPU slices they fill.

    Args:
        replicas: the request's own number; 1 if it names none.

    Raises:
        InvalidInput: the two numbers of replicas differ, they do not fill whole slices, or there is no such slice type.
    """
    asked = {replicas, resources.replicas} - {1}
    if len(asked) > 1:
        other = f"resources.replicas is {resources.replicas} (with_tpu sets it to the number of virtual machines)"
        raise InvalidInput("replicas", replicas, f"{other}; leave one of the two out")
    count = asked.pop() if asked else 1
    if not isinstance(resources.device, TpuConfig) or not isinstance(count, int):
        return {"replicas": count}
    hosts = resources.device.vm_count()
    if count == 1:
        return {"replicas": hosts, "slices": 1}
    if count % hosts:
        remedy = f"a slice of {resources.device.variant} has {hosts} virtual machines, each with its own process"
        raise InvalidInput("replicas", count, f"{remedy}; give a multiple of {hosts}, or leave it out for one slice")
    return {"replicas": count, "slices": count // hosts}
