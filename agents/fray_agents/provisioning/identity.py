"""The names and labels under which a provider knows the machines of a pool.

They are made of the cluster's id, the pool and the machine's name, and of nothing else: whoever makes a call again
finds what the first one made, and two clusters in one project do not see each other's machines.
"""

import hashlib
import re
from collections.abc import Mapping

from fray_layouts.key_encoding import digest_text

CLUSTER_LABEL = "fray-cluster"
POOL_LABEL = "fray-pool"
MACHINE_LABEL = "fray-machine"
BATCH_LABEL = "fray-batch"

MAX_PROVIDER_NAME = 49
"""Characters of a provider's name: Cloud Run allows the fewest, and Google Cloud and Kubernetes 63."""
MAX_LABEL = 63
"""Characters of a label's value, on Google Cloud and on Kubernetes."""

_DIGEST_DIGITS = 8
_POOL_PART, _NAME_PART = 14, 20
"""Characters of the parts of a provider's name: with "fray-" and two hyphens they make `MAX_PROVIDER_NAME`."""
_PLAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_OTHER = re.compile(r"[^a-z0-9]+")


def provider_name(cluster_id: str, pool: str, machine: str) -> str:
    """What the provider calls a machine: a small letter, then small letters, digits and hyphens, at most 49."""
    return name_prefix(cluster_id, pool) + _part(machine, _NAME_PART)


def name_prefix(cluster_id: str, pool: str) -> str:
    """What the provider's names of a pool's machines begin with, and no others."""
    return f"fray-{_part(pool, _POOL_PART)}-{_digest(f'{cluster_id}/{pool}')}-"


def machine_of(name: str, cluster_id: str, pool: str) -> str | None:
    """The machine that a provider's name says, as `MachineKeys.fresh` made it; None if it is none of this pool's."""
    prefix = name_prefix(cluster_id, pool)
    machine = name.removeprefix(prefix)
    return machine if name.startswith(prefix) and _PLAIN.fullmatch(machine) and len(machine) <= _NAME_PART else None


def pool_labels(cluster_id: str, pool: str) -> dict[str, str]:
    """The labels that all machines of a pool carry, and by which a provider lists them."""
    return {CLUSTER_LABEL: _part(cluster_id, MAX_LABEL), POOL_LABEL: _part(pool, MAX_LABEL)}


def machine_labels(cluster_id: str, pool: str, machine: str, batch: str) -> dict[str, str]:
    """The labels of one machine; those of its pool are among them."""
    return {**pool_labels(cluster_id, pool), MACHINE_LABEL: machine, BATCH_LABEL: batch}


def is_of_pool(labels: Mapping[str, str], cluster_id: str, pool: str) -> bool:
    """Whether something that a provider lists is a machine of this pool of this cluster."""
    return pool_labels(cluster_id, pool).items() <= labels.items() and MACHINE_LABEL in labels


def _part(text: str, longest: int) -> str:
    """`text` if it may stand in a name; else as much of it as is allowed and fits, with a digest of it."""
    if len(text) <= longest and _PLAIN.fullmatch(text):
        return text
    kept = _OTHER.sub("-", text.lower())[: longest - _DIGEST_DIGITS - 1].strip("-")
    return f"{kept}-{_digest(text)}" if kept else _digest(text)


def _digest(text: str) -> str:
    return digest_text(hashlib.sha256(text.encode()).digest())[:_DIGEST_DIGITS]
