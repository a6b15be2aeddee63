"""What a job asks of Ray: which requests Ray can honour, and the resources that it reserves for each replica."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from fray.cluster.ray.connection import import_ray
from fray.cluster.unsupported_fields import check_unsupported
from fray.job_spec import to_spec
from fray.types import JobRequest
from fray_layouts.errors import InvalidInput
from fray_layouts.spec import JobSpec, ResourceSpec
from fray_layouts.units import format_bytes

log = logging.getLogger("fray")

HEAD_NODE = "head_node"
"""Ray's resource of nodes that are not taken away; who starts the cluster gives it to them."""

HEAD_NODE_SHARE = 0.0001
"""Of it for one process: the least that Ray counts, so that thousands fit."""

_PLACE = "Ray knows no {} of nodes; leave it out, or start a Ray there and submit to it"
_ONLY_ROOT = "only a cluster in storage has that: StorageClient(root); leave it out"

_RESOURCES = {
    "regions": _PLACE.format("regions"),
    "zone": _PLACE.format("zones"),
    "labels": _PLACE.format("labels that Fray has written"),
    "hard_cpu": "Ray counts cores and limits none; leave it out",
    "device_alternatives": "Ray is asked for one type of device; name one",
}
_ENVIRONMENT = {
    "docker_image": "Ray's nodes run in the image that the cluster was started with; leave it out",
    "extras": "Ray installs no projects; name the packages in pip_packages",
}
_JOB = {
    "pool": "Ray is one pool; leave it out",
    "priority": "Ray starts what fits, in order of arrival; leave it out",
    "same": _PLACE.format("zones"),
    "health_check": _ONLY_ROOT,
    "ports": _ONLY_ROOT,
    "outputs": "write them to storage, and return their paths",
    "actor": "create_actor makes Ray's own actors",
}
"""The fields of a spec that Ray cannot honour, and what to do instead."""


def checked_spec(request: JobRequest, connected: bool = True) -> JobSpec:
    """The checked spec of a request that Ray can honour, its callable pickled.

    Args:
        connected: this process is connected to the Ray, so that it can be asked what nodes it has.

    Raises:
        InvalidInput: a value is wrong, or Ray cannot do what it asks for; the error has the reason and the remedy.
    """
    spec = to_spec(request)
    check_unsupported(spec, _JOB, _RESOURCES, _ENVIRONMENT)
    if spec.resources.disk_limit:
        raise InvalidInput("resources.disk", spec.resources.disk, "Ray does not count disk; leave it out")
    if connected and not spec.resources.preemptible:
        check_head_node()
    return spec


def check_head_node() -> None:
    """Raises InvalidInput: no node of this Ray says that it is not taken away."""
    if HEAD_NODE not in import_ray().cluster_resources():
        start = f"""ray start --resources='{{"{HEAD_NODE}": 1}}'"""
        remedy = f"no node of this Ray says that it is never taken away; start those that are so: {start}"
        raise InvalidInput("resources.preemptible", False, remedy)


def actor_options(resources: ResourceSpec) -> dict[str, Any]:
    """The options of a Ray actor or task with these resources.

    Memory is asked for if somebody chose how much; Ray counts it, and does not limit it.
    """
    options: dict[str, Any] = {"num_cpus": resources.cpu}
    custom: dict[str, float] = {}
    if resources.memory_limit:
        options["memory"] = resources.memory_limit
    device = resources.device
    if device is not None and device.kind == "gpu":
        options["num_gpus"] = device.count
        if device.variant:
            options["accelerator_type"] = device.variant.upper()
    if device is not None and device.kind == "tpu":
        custom["TPU"] = device.count
    if not resources.preemptible:
        custom[HEAD_NODE] = HEAD_NODE_SHARE
    return options | ({"resources": custom} if custom else {})


def too_large_for(nodes: Iterable[Mapping[str, float]], resources: ResourceSpec) -> str:
    """Says that none of the nodes could ever have room for one process with these resources; "" if one could.

    Args:
        nodes: the resources of each.
    """
    asked, most = bundle(resources), list(nodes)
    if any(all(node.get(name, 0) >= amount for name, amount in asked.items()) for node in most):
        return ""
    wants = ", ".join(_told(name, amount) for name, amount in asked.items() if name != "memory" or amount > 1)
    cores = max((node.get("CPU", 0) for node in most), default=0)
    return f"no node of this Ray has {wants} at once (the largest has CPU {cores:g}), so it waits until one comes"


def _told(name: str, amount: float) -> str:
    if amount < HEAD_NODE_SHARE * 100:  # a share only says which nodes
        return name
    return f"{name} {format_bytes(amount) if name == 'memory' else f'{amount:g}'}"


def warn_if_too_large(what: str, resources: ResourceSpec) -> None:
    """Log that what was just asked of Ray waits for a larger node: Ray says so in its own logs alone."""
    nodes = [node["Resources"] for node in import_ray().nodes() if node["Alive"]]
    if why := too_large_for(nodes, resources):
        log.warning("%s: %s", what, why)


def bundle(resources: ResourceSpec) -> dict[str, float]:
    """The same as a bundle of a placement group, which has to ask for something."""
    options = actor_options(resources)
    asked = {"CPU": options["num_cpus"], "GPU": options.get("num_gpus", 0), "memory": options.get("memory", 1)}
    accelerator = options.get("accelerator_type")
    typed = {f"accelerator_type:{accelerator}": 0.001} if accelerator else {}
    return {name: amount for name, amount in (asked | options.get("resources", {}) | typed).items() if amount}


def without_call(spec: JobSpec) -> tuple[JobSpec, str]:
    """The spec without its pickled callable, which may be large, and that in base64; "" for a command."""
    call = spec.entrypoint.callable
    if call is None:
        return spec, ""
    entrypoint = replace(spec.entrypoint, callable=replace(call, pickle=""))
    return replace(spec, entrypoint=entrypoint), call.pickle
