"""Reservations as programs write and read them: from a config to a record, and from a record to what is told."""

from __future__ import annotations

from msgspec.structs import replace

from fray.cluster.current_job import CurrentJob
from fray.job_spec import to_spec
from fray.resources import CpuConfig, DeviceConfig, GpuConfig, ResourceConfig, TpuConfig
from fray.types import BinaryEntrypoint, JobId, JobRequest, ReservationConfig, ReservationId, ReservationInfo
from fray_coordinator.core import Core
from fray_coordinator.placements import reservations
from fray_coordinator.protocol.placements.owners import owner_of_reservation
from fray_layouts.bounds import MAX_SECONDS
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import JobIds
from fray_layouts.records import JobRecord, ReservationRecord, ReservedPart
from fray_layouts.spec import GangSpec, JobSpec, ResourceSpec
from fray_layouts.states import ReservationKind, ReservationState

MIN_TTL = 10.0
"""Seconds: hosts are gathered within some seconds, and one that ends before that is of no use."""

_NAME = "reservation"


def checked_config(config: object) -> ReservationConfig:
    """The argument, if it is a config whose time is of use. Raises InvalidInput."""
    if not isinstance(config, ReservationConfig):
        raise InvalidInput("config", config, "give a ReservationConfig")
    checked_ttl(config.ttl_seconds)
    return config


def checked_ttl(ttl: object) -> None:
    """Raise InvalidInput unless it is None, or seconds for which a reservation is of use."""
    is_number = isinstance(ttl, (int, float)) and not isinstance(ttl, bool)
    if ttl is not None and not (is_number and MIN_TTL <= float(ttl) <= MAX_SECONDS):  # type: ignore[arg-type]
        raise InvalidInput("ttl_seconds", ttl, f"give seconds, at least {MIN_TTL:g}; it can be renewed and released")


def parts_of(config: ReservationConfig, private: bool) -> tuple[list[ReservedPart], int]:
    """The bundles that are reserved, and how many of them it needs at least.

    private: on a private cluster, which counts no hosts and never grows: it grants the least, a slice as one, and its
        bundles take no room.

    Raises:
        InvalidInput: a value is out of bounds, the two differ in more than replicas, or the minimum is too large.
    """
    least = _spec(config, "min_resources", config.min_resources)
    most = _spec(config, "max_resources", config.max_resources or config.min_resources)
    if most.resources != least.resources:
        remedy = "it may differ from min_resources only in how many: replicas, or slice_count of with_tpu"
        raise InvalidInput("max_resources", config.max_resources, remedy)
    if least.replicas > most.replicas:
        remedy = f"it is more than max_resources, which has {most.replicas} of them; give at most as many"
        raise InvalidInput("min_resources", f"{least.replicas} replicas", remedy)
    if private:
        count = least.slices or least.replicas
        return [ReservedPart(gang=GangSpec(resources=ResourceSpec(cpu=0), count=count))], count
    gangs = [_gang(least, least.replicas, least.slices)]
    if most.replicas > least.replicas:
        gangs.append(_gang(most, most.replicas - least.replicas, most.slices - least.slices))
    return [ReservedPart(gang=gang) for gang in gangs], least.replicas


def _spec(config: ReservationConfig, field: str, resources: object) -> JobSpec:
    """The spec of a job that would fill it. Raises InvalidInput, which names the field of the config."""
    if not isinstance(resources, ResourceConfig):
        raise InvalidInput(field, resources, "give a ResourceConfig")
    request = JobRequest(_NAME, BinaryEntrypoint("true"), resources, priority=config.priority, pool=config.pool)
    try:
        spec = to_spec(request)
    except InvalidInput as error:
        part, _, rest = error.field.partition(".")
        if part in ("resources", "replicas", "slices", "tpu_type"):
            raise InvalidInput(".".join([field, rest or part]), error.value, error.remedy) from None
        raise
    kept = spec.resources.preemptible and config.preemptible
    return replace(spec, resources=replace(spec.resources, preemptible=kept))


def _gang(spec: JobSpec, count: int, slices: int) -> GangSpec:
    """Equal bundles; a slice of one host is any host that has it."""
    return GangSpec(resources=spec.resources, count=count, slices=slices if count > slices else 0)


async def create_reservation(
    core: Core, config: ReservationConfig, namespace: str, mine: CurrentJob | None, private: bool
) -> ReservationId:
    """Create it for a namespace; inside a job it ends with the attempt that makes it. Raises InvalidInput."""
    parts, low = parts_of(config, private)
    now = core.now()
    record = ReservationRecord(
        id=JobIds.fresh(_NAME, now, core.rng.token()),
        kind=ReservationKind.RESERVATION,
        namespace=namespace,
        pool=config.pool,
        priority=config.priority,
        submitted_at=now,
        parts=parts,
        low=low,
        parent=mine.job_id if mine is not None else "",
        parent_attempt=mine.attempt if mine is not None else 0,
        ttl=config.ttl_seconds,
        expires_at=now + config.ttl_seconds,
    )
    return ReservationId((await reservations.create(core, record)).id)


async def reservation_info(core: Core, reservation: str) -> ReservationInfo:
    """What a reservation has, lacks and runs now. Raises ReservationNotFound."""
    record = (await reservations.read(core, reservation)).record
    jobs = [] if record.state == ReservationState.ENDED else await reservations.jobs_in(core, record)
    return info_of_reservation(record, jobs)


def info_of_reservation(record: ReservationRecord, jobs: list[JobRecord]) -> ReservationInfo:
    """The same of a record that was read, and the jobs that are in it."""
    owner = owner_of_reservation(record)
    in_slice = max((part.count // part.slices for part in owner.parts if part.slices), default=1)
    has = sum(len(member.bundles) for member in owner.placement.members) // in_slice
    most = sum(part.count for part in owner.parts) // in_slice
    allocated = has if record.state == ReservationState.HELD else 0
    lacks = 0 if record.state == ReservationState.ENDED else most - allocated
    resources = record.parts[0].gang.resources if record.parts else ResourceSpec()
    return ReservationInfo(
        reservation_id=ReservationId(record.id),
        allocated_resources=resources_of(resources, allocated),
        pending_resources=resources_of(resources, lacks),
        jobs=[JobId(job.id) for job in jobs],
        expires_at=record.expires_at or 0.0,
        state=record.state,
        reason=record.reason,
    )


def resources_of(spec: ResourceSpec, replicas: int) -> ResourceConfig:
    """What a spec asks for, as programs write it, so many times."""
    return ResourceConfig(
        cpu=spec.cpu,
        ram=spec.memory,
        disk=spec.disk,
        device=_device(spec),
        preemptible=spec.preemptible,
        regions=spec.regions or None,
        zone=spec.zone or None,
        replicas=replicas,
        device_alternatives=spec.device_alternatives or None,
        labels=spec.labels or None,
        hard_cpu=spec.hard_cpu,
    )


def _device(spec: ResourceSpec) -> DeviceConfig:
    match spec.device:
        case None:
            return CpuConfig()
        case device if device.kind == "tpu":
            return TpuConfig(device.variant)
        case device if device.kind == "gpu":
            return GpuConfig(device.variant or "auto", device.count)
    return CpuConfig()
