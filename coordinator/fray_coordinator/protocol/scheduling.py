"""Scheduling: the shape of a job, whether it fits a host, and where in the queue a claimer begins.

**Invariant.** A job's index entry is a function of its record, so that whoever finds it missing writes the same name.

**Unsafe sequence.** Two repairers create entries of different names for one job, and one is left over for ever.

**Why this cannot happen.** `entry_of` reads nothing but the record.
"""

import math
from dataclasses import dataclass

from fray_layouts.bounds import MAX_TIME
from fray_layouts.index_keys import PendingKey, Shape
from fray_layouts.records import AgentRecord, JobRecord, Resources
from fray_layouts.spec import JobSpec, needs_environment


def shape_of(spec: JobSpec) -> Shape:
    """The resources that one replica of the job takes from a host."""
    wants, device = spec.resources, spec.resources.device
    accelerator = device if device is not None and device.kind != "cpu" else None
    return Shape(
        cpu=math.ceil(wants.cpu * 1000),
        memory=int(wants.memory),
        disk=int(wants.disk),
        device="" if accelerator is None else "-".join(p for p in (accelerator.kind, accelerator.variant) if p).lower(),
        device_count=0 if accelerator is None else int(accelerator.count),
        on_demand=not wants.preemptible,
        actor=spec.actor,
        packages=needs_environment(spec.environment),
        image=bool(spec.environment.docker_image),
        device_share=0 if accelerator is None or accelerator.count >= 1 else round(accelerator.count * 1000),
    )


def entry_of(job: JobRecord) -> PendingKey:
    """The index entry of the job's current attempt."""
    spec = job.spec
    return PendingKey(spec.pool, spec.priority, job.submitted_at, job.id, job.attempt, shape_of(spec))


@dataclass(frozen=True, slots=True)
class HostKind:
    """The kind of a host.

    Attributes:
        preemptible: it may be taken away.
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


def shortage(shape: Shape, free: Resources, host: HostKind) -> str:
    """Why `shape` does not fit `free` on such a host; "" if it fits."""
    if shape.on_demand and host.preemptible:
        return "a host that is not preemptible"
    if shape.actor and not host.inbound:
        return "a host that accepts connections, because it is an actor"
    if shape.packages and not host.packages:
        return "a host with uv, because it has packages of its own"
    if shape.image and not host.containers:
        return "a host with podman or docker, because it has an image"
    if shape.cpu > free.cpu:
        return f"cpu: {shape.cpu / 1000:g} cores wanted, {free.cpu / 1000:g} free"
    for what in ("memory", "disk"):
        wanted, has = getattr(shape, what), getattr(free, what)
        if wanted > has:
            return f"{what}: {wanted} bytes wanted, {has} free"
    if shape.device and not _device_matches(shape.device, free.device):
        return f"device: {shape.device} wanted, {free.device or 'none'} here"
    if shape.device_share > max([*free.device_shares, 1000 * free.device_count]):
        return f"device: {shape.device_share / 1000:g} of a {shape.device} wanted, less is free of each"
    if shape.device_count > free.device_count:
        return f"device: {shape.device_count} x {shape.device} wanted, {free.device_count} free"
    return ""


def _device_matches(wanted: str, has: str) -> bool:
    """Whether the device is the one wanted; a job that names no variant ("gpu") takes any."""
    return has == wanted or has.startswith(f"{wanted}-")


def remaining_after(free: Resources, shape: Shape) -> Resources:
    """The rest of `free` once `shape` runs there: of a TPU's chips none, because each process sees all of them."""
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
    """The key behind which one claimer lists, in a pool with more slots than a listing shows; None: the head will do.

    Claimers that all list the head would fight for what it shows. Each begins somewhere within the first K entries, K
    being the pool's slots; the times in the listed names show about how far away that is.

    Args:
        first, last: of the `listed` keys at the head.
        pool_slots: K, a hint.
        draw: a random number in [0, 1).
    """
    offset = int(draw * pool_slots)
    begin, end = PendingKey.parse(first), PendingKey.parse(last)
    if offset < listed or begin is None or end is None or begin.priority != end.priority:
        return None
    time = begin.time + (end.time - begin.time) * offset / listed
    return PendingKey.before(begin.pool, begin.priority, min(time, MAX_TIME))
