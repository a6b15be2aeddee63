"""Reservations and launch groups: the part of a cluster's interface that places jobs together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from fray.cluster.current_job import CurrentJob
from fray.job_spec import to_spec
from fray.resources import CpuConfig, DeviceConfig, GpuConfig, ResourceConfig, TpuConfig
from fray.types import (
    BinaryEntrypoint,
    Duration,
    JobGroupConfig,
    JobId,
    JobRequest,
    ReservationConfig,
    ReservationId,
    ReservationInfo,
)
from fray_coordinator.core import Core
from fray_coordinator.placements import reservations
from fray_coordinator.protocol.placements.owners import owner_of_reservation
from fray_layouts.bounds import MAX_SECONDS
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import JobIds
from fray_layouts.records import JobRecord, ReservationRecord, ReservedPart
from fray_layouts.spec import GangSpec, JobSpec, ResourceSpec
from fray_layouts.states import ReservationKind, ReservationState
from fray_layouts.units import parse_seconds
from fray_runtime.current_task import PrivateMode

MIN_TTL = 10.0
"""Least seconds of a reservation. Gathering hosts takes some seconds, so a shorter one would end before it begins."""

_NAME = "reservation"


def checked_config(config: object) -> ReservationConfig:
    """Return the argument if it is a ReservationConfig with a valid duration. Raises InvalidInput if it is not."""
    if not isinstance(config, ReservationConfig):
        raise InvalidInput("config", config, "give a ReservationConfig")
    checked_ttl(config.ttl_seconds)
    return config


def checked_ttl(ttl: Duration) -> float:
    """The duration in seconds. Raises InvalidInput unless it is between `MIN_TTL` and `MAX_SECONDS`."""
    seconds = parse_seconds("ttl_seconds", ttl)
    if not MIN_TTL <= seconds <= MAX_SECONDS:
        raise InvalidInput("ttl_seconds", ttl, f"give at least {MIN_TTL:g} seconds; it can be renewed and released")
    return seconds


def parts_of(config: ReservationConfig, private: PrivateMode) -> tuple[list[ReservedPart], int]:
    """The bundles to reserve, and how many of them the reservation needs at least.

    private: of a private cluster, which counts no hosts and never grows. It grants the minimum, where a slice counts as
        one bundle, and its bundles take no room.

    Raises:
        InvalidInput: a value is out of bounds, minimum and maximum differ in more than the number of replicas, or the
            minimum is greater than the maximum; or a private cluster that does not simulate cannot give a bundle.
    """
    minimum = _spec(config, "min_resources", config.min_resources)
    maximum = _spec(config, "max_resources", config.max_resources or config.min_resources)
    if maximum.resources != minimum.resources:
        remedy = "it may differ from min_resources only in the number: replicas, or slice_count of with_tpu"
        raise InvalidInput("max_resources", config.max_resources, remedy)
    if minimum.replicas > maximum.replicas:
        remedy = f"it is more than max_resources, which has {maximum.replicas} of them; give at most as many"
        raise InvalidInput("min_resources", f"{minimum.replicas} replicas", remedy)
    if private:
        from fray.cluster.private_spec import private_spec  # imported late: it needs an agent's code

        private_spec(minimum, private)
        count = minimum.slices or minimum.replicas
        return [ReservedPart(gang=GangSpec(resources=ResourceSpec(cpu=0), count=count))], count
    gangs = [_gang(minimum, minimum.replicas, minimum.slices)]
    if maximum.replicas > minimum.replicas:
        gangs.append(_gang(maximum, maximum.replicas - minimum.replicas, maximum.slices - minimum.slices))
    return [ReservedPart(gang=gang) for gang in gangs], minimum.replicas


def _spec(config: ReservationConfig, field: str, resources: object) -> JobSpec:
    """The spec of a job that would fill these resources. Raises InvalidInput, which names the config's field."""
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
    """A gang of `count` equal bundles. Slices of a single host each are left out: any host with the device will do."""
    return GangSpec(resources=spec.resources, count=count, slices=slices if count > slices else 0)


async def create_reservation(
    core: Core,
    config: ReservationConfig,
    namespace: str,
    mine: CurrentJob | None,
    private: PrivateMode,
    driver: str = "",
) -> ReservationId:
    """Create a reservation for a namespace. Inside a job it ends with the attempt that creates it.

    driver: the job that stands for this program; "" if there is none yet.

    Raises InvalidInput as `parts_of`.
    """
    parts, low = parts_of(config, private)
    now, ttl = core.now(), checked_ttl(config.ttl_seconds)
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
        ttl=ttl,
        expires_at=now + ttl,
        ancestors=mine.family if mine is not None else [driver] if driver else [],
    )
    return ReservationId((await reservations.create(core, record)).id)


async def reservation_info(core: Core, reservation: str) -> ReservationInfo:
    """Read what a reservation has, lacks and runs now. Raises ReservationNotFound if it does not exist."""
    record = (await reservations.read(core, reservation)).record
    jobs = [] if record.state == ReservationState.ENDED else await reservations.jobs_in(core, record)
    return info_of_reservation(record, jobs)


def info_of_reservation(record: ReservationRecord, jobs: list[JobRecord]) -> ReservationInfo:
    """Make the ReservationInfo of a record and the jobs in the reservation."""
    owner = owner_of_reservation(record)
    hosts_per_slice = max((part.count // part.slices for part in owner.parts if part.slices), default=1)
    placed = sum(len(member.bundles) for member in owner.placement.members) // hosts_per_slice
    maximum = sum(part.count for part in owner.parts) // hosts_per_slice
    allocated = placed if record.state == ReservationState.HELD else 0
    lacking = 0 if record.state == ReservationState.ENDED else maximum - allocated
    resources = record.parts[0].gang.resources if record.parts else ResourceSpec()
    return ReservationInfo(
        reservation_id=ReservationId(record.id),
        allocated_resources=resources_of(resources, allocated),
        pending_resources=resources_of(resources, lacking),
        jobs=[JobId(job.id) for job in jobs],
        expires_at=record.expires_at or 0.0,
        state=record.state,
        reason=record.reason,
    )


def resources_of(spec: ResourceSpec, replicas: int) -> ResourceConfig:
    """The ResourceConfig that asks for a spec's resources, with so many replicas."""
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


class PlacingCluster(Protocol):
    """The methods of every `Cluster` that launch jobs together and hold hosts for jobs."""

    def launch_group(
        self, requests: Sequence[JobRequest], group: JobGroupConfig, reservation_id: str | None = None
    ) -> list[JobId]:
        """Submit jobs that start together or not at all, and return their ids in the same order.

        Their requests may differ in every way. If not all of them can start now, all of them wait. A private cluster
        starts each as there is room.

            ids = cluster.launch_group([trainer, *rollouts], JobGroupConfig("rl"))

        Args:
            requests: the jobs, all of one pool, none with an `id`.
            group: the group's name, the namespace of all its jobs if it names one, and whether all run in one zone or
                region.
            reservation_id: id of a reservation of the same namespace, in which the jobs start. None: anywhere.

        Raises:
            InvalidInput: as `launch`; or a job is larger than every host of its kind, no agent states its zone, the
                reservation has ended or belongs to another namespace, or a request names a namespace other than the
                group's. Nothing was submitted.
            ReservationNotFound: there is no such reservation.
            ParentNotRunning: as `launch`.
        """

    def create_reservation(self, config: ReservationConfig) -> ReservationId:
        """Hold hosts for the jobs of `namespace`, and return the reservation's id at once.

        It begins once its minimum is available. From then on, jobs of the namespace that ask for the same device and
        fit start in it, and wait in it while it is full; other jobs run as before. Between its minimum and its maximum
        it has as much as there is room for. It ends after `ttl_seconds` without a renewal, when it is released, or with
        the job that created it, if a job did; then its jobs are stopped.

            held = cluster.create_reservation(ReservationConfig(min_resources=two_slices, max_resources=eight_slices))

        Args:
            config: how much to hold, and for how long; see `ReservationConfig`.

        Raises:
            InvalidInput: a value is out of bounds, or the minimum is more than the maximum.
        """

    def get_reservation(self, reservation_id: str) -> ReservationInfo:
        """Read what a reservation has, what it lacks, its jobs, and when it ends.

        Args:
            reservation_id: the id that `create_reservation` returned or that `fray reservations` shows.

        Raises:
            ReservationNotFound: there is no such reservation.
        """

    def renew_reservation(self, reservation_id: str, ttl_seconds: Duration | None = None) -> ReservationInfo:
        """Extend a reservation, so that it ends `ttl_seconds` from now.

        Args:
            reservation_id: as for `get_reservation`.
            ttl_seconds: seconds from now on; None: as many as it was created with.

        Raises:
            InvalidInput: the reservation has ended, or `ttl_seconds` is out of bounds.
            ReservationNotFound: there is no such reservation.
        """

    def release_reservation(self, reservation_id: str) -> None:
        """End a reservation: its jobs are stopped, and its hosts are free for others. Nothing happens if it has ended.

        Args:
            reservation_id: as for `get_reservation`.

        Raises:
            ReservationNotFound: there is no such reservation.
        """
