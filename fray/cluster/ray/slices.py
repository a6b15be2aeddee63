"""TPU slices on Ray: finds the nodes of each slice, and makes the bundles with which a job reserves whole slices.

Ray sets up the machines of Google Cloud so: each node of a slice has the resource "TPU" with its number of chips, and a
resource with the slice's name. The first node also has "TPU-<type>-head", such as "TPU-v5litepod-16-head". A job takes
whole slices, each with all nodes that have the slice's name. Each bundle also names its node, so that the replicas are
in the order in which the TPU numbers its workers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fray_layouts.topology import get_tpu_topology

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
