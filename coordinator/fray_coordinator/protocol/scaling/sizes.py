"""What the hosts of a pool's machines have, before there is one and after."""

from __future__ import annotations

from collections.abc import Iterable

from fray_layouts.records import AgentRecord, ProvisioningSpec, Resources
from fray_layouts.topology import TPU_TOPOLOGIES, tpu_family

_TPU_HOSTS = {
    "v4": {4: (240, 407)},
    "v5p": {4: (208, 448)},
    "v5e": {1: (24, 48), 4: (112, 192), 8: (224, 384)},
    "v6e": {1: (44, 176), 4: (180, 720), 8: (180, 1440)},
}
"""Cores and GB of memory of a virtual machine by its chips, as Google Cloud's pages on each family list them."""


def hosts_of(spec: ProvisioningSpec) -> int:
    """The hosts of each machine: those of the slice, if its type is one."""
    topology = TPU_TOPOLOGIES.get(spec.machine_type)
    return topology.vm_count if topology is not None else 1


def capacity_of(spec: ProvisioningSpec, agents: Iterable[AgentRecord]) -> Resources | None:
    """What each host has: as the pool says, as an agent on one said last, or as its type has it; None: unknown."""
    if spec.capacity is not None:
        return spec.capacity
    known = [agent for agent in agents if agent.machine]
    if known:
        return max(known, key=lambda agent: agent.started_at).capacity
    topology = TPU_TOPOLOGIES.get(spec.machine_type)
    if topology is None:
        return None
    cpu, gigabytes = _TPU_HOSTS[tpu_family(spec.machine_type)].get(topology.chips_per_vm, (24, 48))
    return Resources(
        cpu=1000 * cpu,
        memory=gigabytes * 10**9,
        disk=50 * 10**9,
        device=f"tpu-{spec.machine_type}".lower(),
        device_count=topology.chips_per_vm,
    )
