"""Which pending job goes where: the shape of a job, whether it fits a host, and what to try first.

Invariant: a job's index entry is a function of its record, so that whoever finds it missing writes the same name.
Unsafe: two repairers create entries of different names for one job, and one is left over for ever.
Why not here: `entry_of` reads nothing but the record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fray_layouts.names import Pending, Shape
from fray_layouts.records import JobRecord, Resources
from fray_layouts.spec import JobSpec


def shape_of(spec: JobSpec) -> Shape:
    """What one replica of the job takes from a host. `spec` must have passed `spec.checked`."""
    wants, device = spec.resources, spec.resources.device
    accelerator = device if device is not None and device.kind != "cpu" else None
    return Shape(
        cpu=math.ceil(wants.cpu * 1000),
        memory=int(wants.memory),
        disk=int(wants.disk),
        device="" if accelerator is None else "-".join(p for p in (accelerator.kind, accelerator.variant) if p).lower(),
        device_count=0 if accelerator is None else accelerator.count,
        on_demand=not wants.preemptible,
    )


def entry_of(job: JobRecord) -> Pending:
    """The index entry of the job's current attempt."""
    spec = job.spec
    return Pending(spec.pool, spec.priority, job.submitted_at, job.id, job.attempt, shape_of(spec))


def shortage(shape: Shape, free: Resources, preemptible: bool) -> str:
    """Why `shape` does not fit `free` on a host that is `preemptible` or not; "" if it fits."""
    if shape.on_demand and preemptible:
        return "a host that is not preemptible"
    if shape.cpu > free.cpu:
        return f"cpu: {shape.cpu / 1000:g} cores wanted, {free.cpu / 1000:g} free"
    for what in ("memory", "disk"):
        wanted, has = getattr(shape, what), getattr(free, what)
        if wanted > has:
            return f"{what}: {wanted} bytes wanted, {has} free"
    if shape.device and not _device_matches(shape.device, free.device):
        return f"device: {shape.device} wanted, {free.device or 'none'} here"
    if shape.device_count > free.device_count:
        return f"device: {shape.device_count} x {shape.device} wanted, {free.device_count} free"
    return ""


def _device_matches(wanted: str, has: str) -> bool:
    """A job that names no variant ("gpu") takes any."""
    return has == wanted or has.startswith(f"{wanted}-")


def take(free: Resources, shape: Shape) -> Resources:
    """What is left of `free` once `shape` runs there."""
    return Resources(
        cpu=free.cpu - shape.cpu,
        memory=free.memory - shape.memory,
        disk=free.disk - shape.disk,
        device=free.device,
        device_count=free.device_count - shape.device_count,
    )


def slots(free: Resources) -> int:
    """How many one-core tasks would still fit."""
    return max(free.cpu // 1000, 0)


def order_to_try(fitting: Sequence[Pending], pool_slots: int, draw: float) -> list[Pending]:
    """The entries in the order in which one claimer should try them.

    With as many claimers as the pool has slots K, all beginning at the head would fight for one job. Each begins
    somewhere within the first K of the same priority as the head: those jobs are all about to run anyway.

    Args:
        fitting: entries that fit, in list order.
        pool_slots: K, a hint.
        draw: a random number in [0, 1).
    """
    if not fitting:
        return []
    head = fitting[0].priority
    width = min(max(pool_slots, 1), sum(1 for entry in fitting if entry.priority == head))
    start = int(draw * width)
    return [*fitting[start:width], *fitting[:start], *fitting[width:]]
