"""The number and the capacity of the hosts of a pool's machines, before there is a machine and after."""

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
"""Cores and GB of memory of a virtual machine by its number of chips, from Google Cloud's pages on each family."""

_SMALLEST_TPU_HOST = (24, 48)
"""The same for a number of chips that is not in the table (2 chips of v5e): it has no less than the smallest host."""


def hosts_of(spec: ProvisioningSpec) -> int:
    """The number of hosts of each machine: those of the slice, if its type is a slice."""
    topology = TPU_TOPOLOGIES.get(spec.machine_type)
    return topology.vm_count if topology is not None else 1


def capacity_of(spec: ProvisioningSpec, agents: Iterable[AgentRecord]) -> Resources | None:
    """The capacity of each host; None if nobody knows it yet.

    It is what the pool says, else what the newest agent on one of the machines said, else what the machine type has.
    Nobody knows it if there is no agent yet, and the pool says neither its type nor its cores and memory.
    """
    said = spec.capacity or Resources()
    known = [agent for agent in agents if agent.machine]
    has = max(known, key=lambda agent: agent.started_at).capacity if known else _of_type(spec.machine_type)
    if has is None:
        return said if said.cpu and said.memory else None
    return Resources(
        cpu=said.cpu or has.cpu,
        memory=said.memory or has.memory,
        disk=said.disk or has.disk,
        device=said.device or has.device,
        device_count=said.device_count if said.device else has.device_count,
    )


def _of_type(machine_type: str) -> Resources | None:
    """The capacity of the hosts of a type of TPU slice; None for any other type."""
    topology = TPU_TOPOLOGIES.get(machine_type)
    if topology is None:
        return None
    cpu, gigabytes = _TPU_HOSTS[tpu_family(machine_type)].get(topology.chips_per_vm, _SMALLEST_TPU_HOST)
    return Resources(
        cpu=1000 * cpu,
        memory=gigabytes * 10**9,
        disk=50 * 10**9,  # a cautious guess, until an agent says what its host has
        device=f"tpu-{machine_type}".lower(),
        device_count=topology.chips_per_vm,
    )
