"""Translates a job's demands for Ray: which requests Ray supports, and what it reserves, on TPU slices too.

Ray sets up the machines of Google Cloud so: each node of a slice has the resource "TPU" with its number of chips, and a
resource with the slice's name. The first node also has "TPU-<type>-head", such as "TPU-v5litepod-16-head". A job takes
whole slices, each with all nodes that have the slice's name. Each bundle also names its node, so that the replicas are
in the order in which the TPU numbers its workers.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from fray.backends.ray.connection import import_ray
from fray.cluster.arguments import ONLY_IN_STORAGE, check_unsupported
from fray.job_spec import to_spec
from fray.types import JobRequest
from fray_layouts.errors import InvalidInput
from fray_layouts.spec import JobSpec, ResourceSpec
from fray_layouts.topology import get_tpu_topology
from fray_layouts.units import format_bytes

log = logging.getLogger("fray")

HEAD_NODE = "head_node"
"""Ray's custom resource of nodes that are never preempted. The person who starts the cluster gives it to them."""

HEAD_NODE_SHARE = 0.0001
"""Share of `HEAD_NODE` that one process takes: the least that Ray counts, so that thousands fit on a node."""

_PLACE = "Ray does not know the {} of nodes; leave it out, or start a Ray there and submit to it"

_RESOURCES = {
    "regions": _PLACE.format("regions"),
    "zone": _PLACE.format("zones"),
    "labels": _PLACE.format("labels that Fray uses"),
    "hard_cpu": "Ray counts cores but does not limit them; leave it out",
    "device_alternatives": "Ray can be asked for one type of device only; name one",
}
_ENVIRONMENT = {
    "docker_image": "Ray's nodes run in the image that the cluster was started with; leave it out",
    "extras": "Ray does not install projects; name the packages in pip_packages",
    "groups": "Ray does not install projects; name the packages in pip_packages",
}
_JOB = {
    "pool": "a Ray cluster is one pool; leave it out",
    "priority": "Ray starts what fits, in order of arrival; leave it out",
    "same": _PLACE.format("zones"),
    "health_check": ONLY_IN_STORAGE,
    "ports": ONLY_IN_STORAGE,
    "log_limit": "Ray has settings of its own for logs; leave it out",
    "outputs": "write them to storage, and return their paths",
    "outage": ONLY_IN_STORAGE,
    "actor": "create_actor creates Ray's own actors; use it",
}
"""The fields of a spec that Ray does not support, and what to do instead."""


def checked_spec(request: JobRequest, connected: bool = True) -> JobSpec:
    """Check that Ray supports a request, and return its spec with the callable pickled.

    Args:
        connected: whether this process is connected to the Ray, so that the nodes can be checked too.

    Raises:
        InvalidInput: a value is wrong, or Ray does not support it; the error has the reason and the remedy.
    """
    spec = to_spec(request)
    check_unsupported(spec, _JOB, _RESOURCES, _ENVIRONMENT)
    if spec.resources.disk_limit:
        raise InvalidInput("resources.disk", spec.resources.disk, "Ray does not count disk; leave it out")
    if connected and not spec.resources.preemptible:
        check_head_node()
    return spec


def check_head_node() -> None:
    """Raise InvalidInput if no node of this Ray has the resource of nodes that are never preempted."""
    if HEAD_NODE not in import_ray().cluster_resources():
        start = f"""ray start --resources='{{"{HEAD_NODE}": 1}}'"""
        remedy = f"no node of this Ray is marked as never preempted; start such nodes with: {start}"
        raise InvalidInput("resources.preemptible", False, remedy)


def actor_options(resources: ResourceSpec) -> dict[str, Any]:
    """The options of a Ray actor or task with these resources.

    Memory is among them if the request chose an amount. Ray counts memory, but does not limit it.
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
    """The reason why no node could ever have room for one process with these resources; "" if one could.

    Args:
        nodes: the resources of each node.
    """
    asked, known = bundle(resources), list(nodes)
    if any(all(node.get(name, 0) >= amount for name, amount in asked.items()) for node in known):
        return ""
    wants = ", ".join(_resource_text(name, amount) for name, amount in asked.items() if name != "memory" or amount > 1)
    cores = max((node.get("CPU", 0) for node in known), default=0)
    return f"no node of this Ray has {wants} at once (the largest has CPU {cores:g}), so it waits for one that does"


def _resource_text(name: str, amount: float) -> str:
    if amount < HEAD_NODE_SHARE * 100:  # a share only selects nodes; its amount means nothing to people
        return name
    return f"{name} {format_bytes(amount) if name == 'memory' else f'{amount:g}'}"


def warn_if_too_large(what: str, resources: ResourceSpec) -> None:
    """Log a warning if `what` fits on no node, and so has to wait for one. Ray itself says so only in its own logs."""
    nodes = [node["Resources"] for node in import_ray().nodes() if node["Alive"]]
    if why := too_large_for(nodes, resources):
        log.warning("%s: %s", what, why)


def bundle(resources: ResourceSpec) -> dict[str, float]:
    """These resources as a bundle of a placement group. It has at least a byte of memory, since none may be empty."""
    options = actor_options(resources)
    asked = {"CPU": options["num_cpus"], "GPU": options.get("num_gpus", 0), "memory": options.get("memory", 1)}
    accelerator = options.get("accelerator_type")
    typed = {f"accelerator_type:{accelerator}": 0.001} if accelerator else {}
    return {name: amount for name, amount in (asked | options.get("resources", {}) | typed).items() if amount}


def without_call(spec: JobSpec) -> tuple[JobSpec, str]:
    """Split off the pickled callable, which may be large: returns the spec without it, and its base64 ("" if none)."""
    call = spec.entrypoint.callable
    if call is None:
        return spec, ""
    entrypoint = replace(spec.entrypoint, callable=replace(call, pickle=""))
    return replace(spec, entrypoint=entrypoint), call.pickle


_OTHERS = re.compile(
    r"CPU|GPU|TPU|memory|object_store_memory|head_node|node:.*|accelerator_type:.*|TPU-.*-head|.*_group_.*"
)
"""Names of resources that are not names of slices."""

_NODE_SHARE = 0.001
"""Share of a node's own resource that a bundle takes to get this node. Ray gives each node 1 of it."""

Resources = Mapping[str, float]


@dataclass(frozen=True)
class RaySlice:
    """A whole slice: its name, and the resource that stands for each node, in the order of the TPU's workers."""

    name: str
    nodes: tuple[str, ...]


def head_resource(tpu_type: str) -> str:
    """The resource of the first node of every slice of a type."""
    return f"TPU-{tpu_type}-head"


def whole_slices(nodes: Mapping[str, Resources], tpu_type: str, workers: Mapping[str, int]) -> list[RaySlice]:
    """The whole slices of a type, by name.

    Args:
        nodes: the resources of each living node, by its id: either all of them, or the free ones.
        workers: the TPU worker number of each node, by its id, as far as it is known.
    """
    hosts = get_tpu_topology(tpu_type).vm_count
    found = {}
    for head, resources in nodes.items():
        if not resources.get(head_resource(tpu_type)):
            continue
        for name in (name for name, amount in resources.items() if amount and not _OTHERS.fullmatch(name)):
            members = [node for node, have in nodes.items() if have.get(name) and node != head]
            members.sort(key=lambda node: (workers.get(node, hosts), node))
            if len(members) + 1 == hosts:
                found[name] = RaySlice(name, tuple(_itself(nodes[node]) for node in (head, *members)))
    return [found[name] for name in sorted(found)]


def slice_bundles(taken: Sequence[RaySlice], tpu_type: str, bundle: Resources) -> list[dict[str, float]]:
    """The bundles of a placement group with these slices: one per node, and the head of each slice first.

    Args:
        bundle: the replica's own resources, which each bundle includes.
    """
    bundles = []
    for one in taken:
        for number, node in enumerate(one.nodes):
            head = {head_resource(tpu_type): 1.0} if number == 0 else {}
            bundles.append({**bundle, **head, one.name: 1.0, node: _NODE_SHARE})
    return bundles


def _itself(resources: Resources) -> str:
    """The resource that stands for a node."""
    return next(name for name in resources if name.startswith("node:") and name != "node:__internal_head__")
