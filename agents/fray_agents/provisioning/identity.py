"""The names, labels and arguments of a pool's machines: how a provider knows them, and how their agents start.

Names and labels consist of the cluster's identity (`Core.identity`: its id and its first address), the pool and the
machine's name only. So a repeated call finds the machine that the first call created, and two clusters in one project
do not see each other's machines, even if one is a copy of the other.
"""

import hashlib
import re
from collections.abc import Mapping

from fray_agents.provisioning.provider import MachineRequest
from fray_layouts.key_encoding import digest_text
from fray_layouts.records import Resources
from fray_layouts.topology import TPU_TOPOLOGIES

CLUSTER_LABEL = "fray-cluster"
POOL_LABEL = "fray-pool"
MACHINE_LABEL = "fray-machine"
BATCH_LABEL = "fray-batch"

MAX_PROVIDER_NAME = 49
"""Most characters of a provider's name: Cloud Run allows 49, Google Cloud and Kubernetes 63."""
MAX_LABEL = 63
"""Most characters of a label's value, on Google Cloud and on Kubernetes."""

_DIGEST_DIGITS = 8
"""Digits of a digest, with 5 bits each: two of a thousand pools share one with a chance of less than 1 to 1,000,000."""
_POOL_PART, _NAME_PART = 14, 20
"""Characters of the parts of a provider's name; with "fray-" and two hyphens they add up to `MAX_PROVIDER_NAME`."""
_PLAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_OTHER = re.compile(r"[^a-z0-9]+")


def provider_name(cluster: str, pool: str, machine: str) -> str:
    """The provider's name for a machine: a lower-case letter, then such letters, digits and hyphens, at most 49."""
    return name_prefix(cluster, pool) + _part(machine, _NAME_PART)


def name_prefix(cluster: str, pool: str) -> str:
    """The common prefix of the provider's names for a pool's machines; no other names have it."""
    return f"fray-{_part(pool, _POOL_PART)}-{_digest(f'{cluster}/{pool}')}-"


def machine_of(name: str, cluster: str, pool: str) -> str | None:
    """The machine in a provider's name, as `MachineKeys.fresh` named it; None if the name is not of this pool."""
    prefix = name_prefix(cluster, pool)
    machine = name.removeprefix(prefix)
    return machine if name.startswith(prefix) and _PLAIN.fullmatch(machine) and len(machine) <= _NAME_PART else None


def pool_labels(cluster: str, pool: str) -> dict[str, str]:
    """The labels of all machines of a pool, by which a provider lists them."""
    return {CLUSTER_LABEL: _part(cluster, MAX_LABEL), POOL_LABEL: _part(pool, MAX_LABEL)}


def machine_labels(cluster: str, pool: str, machine: str, batch: str) -> dict[str, str]:
    """The labels of one machine, including those of its pool."""
    return {**pool_labels(cluster, pool), MACHINE_LABEL: machine, BATCH_LABEL: batch}


def is_of_pool(labels: Mapping[str, str], cluster: str, pool: str) -> bool:
    """Whether a resource that a provider lists is a machine of this pool of this cluster."""
    return pool_labels(cluster, pool).items() <= labels.items() and MACHINE_LABEL in labels


def _part(text: str, longest: int) -> str:
    """`text` if it is allowed in a name; otherwise its allowed characters, as many as fit, with a digest of it."""
    if len(text) <= longest and _PLAIN.fullmatch(text):
        return text
    kept = _OTHER.sub("-", text.lower())[: longest - _DIGEST_DIGITS - 1].strip("-")
    return f"{kept}-{_digest(text)}" if kept else _digest(text)


def _digest(text: str) -> str:
    return digest_text(hashlib.sha256(text.encode()).digest())[:_DIGEST_DIGITS]


_GPU = "gpu"


def agent_arguments(request: MachineRequest, machine: str, host: int = 0) -> list[str]:
    """`agent --root ROOT ...` for one host, by its number, of a machine of the request."""
    arguments = ["agent", "--root", request.root, "--pool", request.pool, "--machine", machine]
    for name, value in request.labels.items():
        arguments += ["--label", f"{name}={value}"]
    if request.spec.spot:
        arguments.append("--preemptible")
    if request.spec.machine_type in TPU_TOPOLOGIES:
        arguments += ["--tpu", request.spec.machine_type, "--slice", machine, "--worker", str(host)]
    if request.spec.capacity is not None:
        arguments += _offered(request.spec.capacity)
    return arguments


def _offered(capacity: Resources) -> list[str]:
    """The options for the resources that the host offers; a value of 0 means what the host has."""
    arguments = ["--cpu", f"{capacity.cpu / 1000:g}"] if capacity.cpu else []
    if capacity.memory:
        arguments += ["--memory", f"{capacity.memory}B"]
    kind, _, variant = capacity.device.partition("-")
    if kind == _GPU:
        arguments += ["--gpus", f"{variant}:{capacity.device_count}" if variant else str(capacity.device_count)]
    return arguments
