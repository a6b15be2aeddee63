"""Scheduling: the shape of a job, what a host lacks for it, its GPUs, and where in the index a claimer begins.

**Entries** of the pending index.

**Invariant.** A job's index entry is a function of its record, so that every agent that creates a missing entry uses
the same name.

**Unsafe sequence.**

1. Repairs A and B both find that a job has no entry.
2. They create entries with different names.
3. One of the two stays for ever.

**Why this cannot happen.** `entry_of` reads nothing but the record.

**GPUs** of a host, as they are assigned to jobs.

**Invariant.** The jobs on a GPU never have more than one GPU together, and a job that asked for a whole GPU shares it
with nobody.

**Unsafe sequence.**

1. The agent counts its free GPUs as one number.
2. Jobs A and B, with half a GPU each, are started on two different GPUs. Half of each is left, which adds up to one.
3. Job C wants a whole GPU, is claimed, and shares.

**Why this cannot happen.** The agent counts what is left of each GPU separately. A job gets its GPUs before its claim
is sent, and is not started without them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from fray_layouts.bounds import MAX_TIME
from fray_layouts.index_keys import PendingKey, Shape, family_digits
from fray_layouts.records import AgentRecord, JobRecord, Resources, root_of
from fray_layouts.spec import JobSpec, ResourceSpec, needs_environment
from fray_layouts.units import counted


def shape_of(spec: JobSpec) -> Shape:
    """The resources that one replica of the job takes from a host, and what else the host must offer."""
    packages, image = needs_environment(spec.environment), bool(spec.environment.docker_image)
    return shape_of_resources(spec.resources, spec.actor, packages, image)


def shape_of_resources(wants: ResourceSpec, actor: bool, packages: bool, image: bool) -> Shape:
    """The shape of these resources, with what else the host must offer."""
    device = wants.device
    accelerator = device if device is not None and device.kind != "cpu" else None
    return Shape(
        cpu=math.ceil(wants.cpu * 1000),
        memory=int(wants.memory),
        disk=int(wants.disk),
        device="" if accelerator is None else "-".join(p for p in (accelerator.kind, accelerator.variant) if p).lower(),
        device_count=0 if accelerator is None else int(accelerator.count),
        on_demand=not wants.preemptible,
        actor=actor,
        packages=packages,
        image=image,
        device_share=0 if accelerator is None or accelerator.count >= 1 else round(accelerator.count * 1000),
    )


def entry_of(job: JobRecord) -> PendingKey:
    """The index entry of the job's current attempt."""
    spec = job.spec
    below = family_digits(root_of(job.id, job.ancestors)) if job.ancestors else ""
    return PendingKey(spec.pool, spec.priority, job.submitted_at, job.id, job.attempt, shape_of(spec), below)


def resources_of(shape: Shape) -> Resources:
    """The resources that a task of this shape uses, as heartbeats list them."""
    shares = [shape.device_share] if shape.device_share else []
    return replace(shape.resources(), device_shares=shares)


@dataclass(frozen=True, slots=True)
class HostKind:
    """The kind of a host.

    Attributes:
        preemptible: the provider may take it away.
        inbound: others can connect to it.
        packages: it can install a job's packages.
        containers: it can run an image.
    """

    preemptible: bool = False
    inbound: bool = True
    packages: bool = True
    containers: bool = True


def kind_of_host(agent: AgentRecord) -> HostKind:
    """The kind of an agent's host, by its record."""
    software = agent.software
    return HostKind(agent.preemptible, agent.inbound, bool(software.pythons), bool(software.containers))


def shortage(shape: Shape, free: Resources, host: HostKind, there: str = "free") -> list[str]:
    """Everything that `shape` needs and such a host lacks, devices first; [] if it fits.

    Args:
        free: the resources that the host offers.
        there: a word for people that says what `free` is: "free" for what is free now, "here" for all that a host has.
    """
    lacks = _device_shortage(shape, free, there) if shape.device else []
    if shape.on_demand and host.preemptible:
        lacks.append("a host that is not preemptible")
    if shape.actor and not host.inbound:
        lacks.append("a host that accepts connections, because it is an actor")
    if shape.packages and not host.packages:
        lacks.append("a host with uv (`pip install uv`), because it has packages of its own")
    if shape.image and not host.containers:
        lacks.append("a host with podman or docker, because it has an image")
    if shape.cpu > free.cpu:
        lacks.append(f"cpu: {counted(shape.cpu / 1000, 'core')} wanted, {max(free.cpu, 0) / 1000:g} {there}")
    if shape.memory > free.memory:
        lacks.append(f"memory: {_gigabytes(shape.memory, free.memory, there)}")
    if shape.disk > free.disk:
        lacks.append(f"disk: {_gigabytes(shape.disk, free.disk, there)}")
    return lacks


def _device_shortage(shape: Shape, free: Resources, there: str) -> list[str]:
    wanted = f"{shape.device}: {shape.device_share / 1000 or shape.device_count:g} wanted"
    if not device_matches(shape.device, free.device):
        return [f"{wanted}, {free.device or 'none'} here"]
    if shape.device_share > max([*free.device_shares, 1000 * free.device_count]):
        return [f"{wanted}, each has less than that free"]
    if shape.device_count > free.device_count:
        return [f"{wanted}, {free.device_count} {there}"]
    return []


def _gigabytes(wanted: int, has: int, there: str) -> str:
    """Two amounts in GB, which is the unit that people use; rounded so that an amount that is too small looks so."""
    return f"{math.ceil(wanted / 1e7) / 100:.12g} GB wanted, {math.floor(max(has, 0) / 1e7) / 100:.12g} {there}"


class HasPlace(Protocol):
    """Anything that has a place: an agent's record, or a view of it."""

    @property
    def zone(self) -> str: ...

    @property
    def region(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]: ...


def elsewhere(wants: ResourceSpec, host: HasPlace) -> list[str]:
    """The reasons why a host is not where the job must run, for people; [] if it is there."""
    wrong: list[str] = []
    if wants.regions and host.region not in wants.regions:
        wrong.append(f"region: {' or '.join(wants.regions)} wanted, {host.region or 'none named'} here")
    if wants.zone and host.zone != wants.zone:
        wrong.append(f"zone: {wants.zone} wanted, {host.zone or 'none named'} here")
    for name, value in wants.labels.items():
        if host.labels.get(name) != value:
            wrong.append(f"label {name}: {value} wanted, {host.labels.get(name, 'none')} here")
    return wrong


def device_matches(wanted: str, has: str) -> bool:
    """Whether the device is the wanted one. A job that names no variant ("gpu") takes any."""
    return has == wanted or has.startswith(f"{wanted}-")


def remaining_after(free: Resources, shape: Shape) -> Resources:
    """The rest of `free` once `shape` runs there. No TPU chips remain, because each process sees all of them."""
    is_tpu = shape.device.partition("-")[0] == "tpu"
    return Resources(
        cpu=free.cpu - shape.cpu,
        memory=free.memory - shape.memory,
        disk=free.disk - shape.disk,
        device=free.device,
        device_count=0 if is_tpu else free.device_count - shape.device_count,
    )


def free_slots(free: Resources) -> int:
    """The number of one-core tasks that still fit."""
    return max(free.cpu // 1000, 0)


def listing_start(first: str, last: str, listed: int, pool_slots: int, draw: float) -> str | None:
    """The key behind which a claimer lists, in a pool with more slots than a listing shows; None: begin at the head.

    If all claimers listed the head, they would fight for the few entries there. So each begins somewhere within the
    first K entries, where K is the number of slots in the pool. The times in the listed names show about how far away
    that is.

    Args:
        first, last: of the `listed` keys at the head.
        pool_slots: K, an estimate.
        draw: a random number in [0, 1).
    """
    offset = int(draw * pool_slots)
    begin, end = PendingKey.parse(first), PendingKey.parse(last)
    if offset < listed or begin is None or end is None or begin.priority != end.priority:
        return None
    time = begin.time + (end.time - begin.time) * offset / listed
    return PendingKey.before(begin.pool, begin.priority, min(time, MAX_TIME))


WHOLE = 1000
"""A whole GPU, in the unit in which parts of one are counted."""


def gpus_for(shape: Shape, left: Sequence[int]) -> tuple[int, ...]:
    """The indices of the GPUs for a job of this shape; none if it needs none, or if there are too few.

    left: thousandths of each of the host's GPUs that are free.
    """
    whole = [place for place, rest in enumerate(left) if rest == WHOLE]
    if not shape.device_share:
        return tuple(whole[: shape.device_count]) if len(whole) >= shape.device_count else ()
    shared = [place for place, rest in enumerate(left) if shape.device_share <= rest < WHOLE]
    fullest = sorted(shared, key=lambda place: left[place])
    return tuple([*fullest, *whole][:1])


def part_of_each(shape: Shape) -> int:
    """The share of each of its GPUs that a job of this shape has, in thousandths."""
    return shape.device_share or WHOLE
