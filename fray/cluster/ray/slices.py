"""TPU slices on Ray: which nodes make one up, and what a job asks for to have whole ones.

A node of a slice has the resource "TPU" with its chips, one that is named as the slice is, and the first node also
"TPU-<type>-head", such as "TPU-v5litepod-16-head": so Ray sets up the machines of Google Cloud. A job takes whole
slices: each is all the nodes that have a slice's name, and its head. Each bundle asks for its node too, so that the
replicas are in the order in which the TPU counts its workers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fray_layouts.topology import get_tpu_topology

_OTHERS = re.compile(
    r"CPU|GPU|TPU|memory|object_store_memory|head_node|node:.*|accelerator_type:.*|TPU-.*-head|.*_group_.*"
)
"""Names of resources that are not those of slices."""

_NODE_SHARE = 0.001
"""Of the resource that stands for a node: Ray gives each node 1 of it, by which it can be asked for."""

Resources = Mapping[str, float]


@dataclass(frozen=True)
class RaySlice:
    """A whole slice: its name, and the resources that stand for its nodes, in the order of the TPU's workers."""

    name: str
    nodes: tuple[str, ...]


def head_resource(tpu_type: str) -> str:
    """The resource of the first node of every slice of a type."""
    return f"TPU-{tpu_type}-head"


def whole_slices(nodes: Mapping[str, Resources], tpu_type: str, workers: Mapping[str, int]) -> list[RaySlice]:
    """The whole slices of a type, by name.

    Args:
        nodes: the resources of each node that is alive, by its id: all of them, or those that are free.
        workers: the number of the TPU's worker that a node is, where it is known.
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
    """The bundles of a placement group that has these slices, a bundle a node, and each head first of its slice.

    Args:
        bundle: what each replica asks for besides.
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
