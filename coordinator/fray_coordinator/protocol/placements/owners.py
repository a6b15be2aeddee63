"""Owners of placements: what gangs, reservations and launch groups have in common.

**Invariant.** Everybody who looks sees the same total order of all owners: by priority, submission and id.

**Unsafe sequence.**

1. Gangs A and B both need the same two hosts.
2. Two passes, which read records of different age, order A and B differently and give one host to each.
3. Each gang gets one vote, and waits for the other for ever.

**Why this cannot happen.** The order is a function of fields that never change in the owners' records. If an earlier
owner is given an agent, a later owner loses it as a member, by that owner's next round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from fray_coordinator.protocol.scheduling import device_matches, shape_of_resources
from fray_coordinator.protocol.transitions import Status
from fray_layouts.index_keys import PlacementKey, Shape, family_digits
from fray_layouts.object_keys import JobKeys, ReservationKeys
from fray_layouts.records import JobRecord, Placement, PlacementMember, ReservationRecord, root_of
from fray_layouts.spec import GangSpec, ResourceSpec, needs_environment
from fray_layouts.states import ExitKind, ReservationState

ENDED_BY_AGENT = frozenset({ExitKind.LOST, ExitKind.PREEMPTED, ExitKind.HOST_FAILED, ExitKind.START_FAILED})
"""The kinds of exits for which an agent or its host is the cause, not the job."""

GANG, RESERVATION = "gang", "reservation"
"""The kinds of owners, as their index entries name them."""


@dataclass(frozen=True, slots=True)
class Part:
    """Equal bundles of an owner, which are given all or none.

    Attributes:
        first: the number of its first bundle among those of the owner.
        count: the number of bundles.
        shape: what one bundle takes from a host.
        resources: as they were asked for, with alternatives of the device and where the host must be.
        slices: how many whole slices the bundles are, one bundle on each host; 0 if they are not slices.
        spread: each bundle is on an agent of its own.
        same: "zone" or "region": all bundles are in one, wherever the owner's others are; "" for anywhere.
        job: the job of a launch group to which they are bound; "" if they are for any job.
    """

    first: int
    count: int
    shape: Shape
    resources: ResourceSpec
    slices: int = 0
    spread: bool = False
    same: str = ""
    job: str = ""

    @property
    def bundles(self) -> range:
        """The numbers of its bundles."""
        return range(self.first, self.first + self.count)

    def variants(self) -> Iterator[Shape]:
        """The shapes that one of its bundles may have, the preferred one first."""
        yield self.shape
        device = self.resources.device
        for variant in self.resources.device_alternatives if device is not None else ():
            yield replace(self.shape, device=f"{device.kind}-{variant}".lower() if device is not None else "")

    def shape_on(self, device: str) -> Shape:
        """The shape of one of its bundles on a host with this device; the preferred shape if no variant fits."""
        return next((shape for shape in self.variants() if device_matches(shape.device, device)), self.shape)


@dataclass(frozen=True, slots=True)
class Owner:
    """An owner as its record says, whatever its kind.

    Attributes:
        id: of the job or the reservation; `key`: of its record.
        kind: `GANG` or `RESERVATION`.
        pool: the pool whose agents it takes. A gang in a reservation takes bundles of the reservation.
        attempt: of a gang; 1 for a reservation.
        parts: its bundles.
        low: how many of the first bundles are given all or none; for a gang, all of them.
        same: "zone" or "region": all of its members are in one; "" for anywhere.
        placement: its members, with the round.
        forming: its members are being gathered by votes. Otherwise it runs, is held, or has ended.
        avoid_hosts: names of hosts that recently failed to start it.
        within: the zone or region, whichever `same` says, in which all that it is given must be; "" for any.
        stays: it begins anew while its last attempt may still be ending; it goes on on the same hosts if it can.
        lost_by: the agent that caused the end of that attempt and may be dead or leaving; "" if none did.
        ancestors: the ids of the jobs above it, the topmost first.
        root: the topmost of these, or its own id, which stands for its family.
        waits_since: the storage's time since which this attempt waits.
    """

    id: str
    key: str
    kind: str
    pool: str
    priority: int
    submitted_at: float
    attempt: int
    parts: tuple[Part, ...]
    low: int
    same: str
    placement: Placement
    forming: bool
    avoid_hosts: tuple[str, ...] = ()
    within: str = ""
    stays: bool = False
    lost_by: str = ""
    ancestors: tuple[str, ...] = ()
    root: str = ""
    waits_since: float = 0.0

    @property
    def family(self) -> str:
        """The digits of its family."""
        return family_digits(self.root or self.id)

    @property
    def order(self) -> tuple[int, float, str]:
        """Its place in the total order. Room is given to earlier owners first."""
        return -self.priority, self.submitted_at, self.id

    def part_of(self, bundle: int) -> Part:
        """The part to which a bundle belongs. Raises LookupError if the owner has no such bundle."""
        for part in self.parts:
            if bundle in part.bundles:
                return part
        raise LookupError(f"{self.key} has no bundle {bundle}")

    def bundles_of(self, agent: str) -> tuple[int, ...]:
        """The numbers of the bundles that the agent is assigned; () if it is no member."""
        return tuple(sorted(n for member in self.placement.members if member.agent == agent for n in member.bundles))


def owner_of_job(job: JobRecord) -> Owner:
    """The owner that a gang is, by its job's record."""
    spec = job.spec
    packages, image = needs_environment(spec.environment), bool(spec.environment.docker_image)
    gang = GangSpec(
        resources=spec.resources,
        count=spec.replicas,
        slices=spec.slices,
        spread=spec.spread,
        actor=spec.actor,
        packages=packages,
        image=image,
    )
    return Owner(
        id=job.id,
        key=JobKeys.key(job.id),
        kind=GANG,
        pool=spec.pool,
        priority=spec.priority,
        submitted_at=job.submitted_at,
        attempt=job.attempt,
        parts=(_part(0, gang, job.id),),
        low=spec.replicas,
        same=spec.same,
        placement=job.placement or Placement(),
        forming=job.status == Status.GATHERING,
        avoid_hosts=tuple(job.avoid_hosts),
        lost_by=_lost_by(job),
        ancestors=tuple(job.ancestors),
        root=root_of(job.id, job.ancestors),
        waits_since=job.history[-1].ended_at if job.history else job.submitted_at,
    )


def _lost_by(job: JobRecord) -> str:
    last = job.history[-1] if job.history else None
    return last.agent if last is not None and last.exit.kind in ENDED_BY_AGENT else ""


def owner_of_reservation(reservation: ReservationRecord) -> Owner:
    """The owner that a reservation or a launch group is, by its record."""
    parts: list[Part] = []
    for reserved in reservation.parts:
        first = parts[-1].bundles.stop if parts else 0
        parts.append(_part(first, reserved.gang, reserved.job))
    return Owner(
        id=reservation.id,
        key=ReservationKeys.key(reservation.id),
        kind=RESERVATION,
        pool=reservation.pool,
        priority=reservation.priority,
        submitted_at=reservation.submitted_at,
        attempt=1,
        parts=tuple(parts),
        low=reservation.low,
        same=reservation.same,
        placement=reservation.placement,
        forming=reservation.state == ReservationState.FORMING,
        ancestors=tuple(reservation.ancestors),
        root=root_of(reservation.id, reservation.ancestors),
        waits_since=reservation.submitted_at,
    )


def bundles_by_agent(members: Iterable[PlacementMember]) -> dict[str, list[int]]:
    """The numbers of the bundles that each agent has. Two choices of members that mean the same give equal results."""
    return {member.agent: sorted(member.bundles) for member in members}


def entry_of_owner(owner: Owner) -> PlacementKey:
    """The index entry of an owner that has not ended."""
    return PlacementKey(owner.pool, owner.priority, owner.submitted_at, owner.id, owner.kind)


def _part(first: int, gang: GangSpec, job: str) -> Part:
    shape = shape_of_resources(gang.resources, gang.actor, gang.packages, gang.image)
    return Part(first, gang.count, shape, gang.resources, gang.slices, gang.spread, gang.same, job)
