"""Reservations and launch groups: which jobs enter, how bundles come and go, when it ends, and what its agents hold.

**Jobs and bundles.**

**Invariant.** A reservation that was held stays held until it ends, and the agent that has a bundle decides which job
uses it. No job runs in a group before all of its bundles were there at once, and no job waits in a reservation that has
ended.

**Unsafe sequence.**

1. Job A of a group starts alone.
2. Another owner takes the hosts that job B of the group needs.
3. Half of the group runs for ever.

Or: a host dies, and the job that ran there waits for ever in a pool that no agent serves.

Or: a pass finds that a reservation has run out, its user renews it, and then the pass writes its end.

**Why this cannot happen.** Jobs wait in the private pool. An agent looks there only after it has read "held", and the
one write of "held" needs all votes. From then on each unit, a slice or a single bundle, is given to another agent when
its agent is lost. If a job of a group ends before the group is held, the group is void. Whoever ends a reservation
stops the jobs that are left in it, and so does each repair. An end that was decided on an earlier version is not
written if the reservation was renewed since.

**Private pools**: the bundles that agents hold for a reservation, as room for the gangs and groups in it.

**Invariant.** The jobs in a reservation never use more of a host than the bundles that the reservation holds there.

**Unsafe sequence.**

1. Agent A holds half of its host for reservation R, and another owner has the other half.
2. The pass sees A as a member of R, and gives a gang in R the whole host.

Or: the pass gives a small job of a group the bundles that were gathered for the group's large job.

**Why this cannot happen.** The room is the sum of those bundles that both the record names and the agent's heartbeat
lists. A job of a group finds only the bundles that are bound to it, as if they were in a pool of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace as with_changes
from types import MappingProxyType

from msgspec.structs import replace

from fray_coordinator.protocol.placements.hosts import HostView, Room, uses_of
from fray_coordinator.protocol.placements.owners import Owner, Part, bundles_by_agent, owner_of_reservation
from fray_coordinator.protocol.scheduling import HostKind, shape_of, shortage
from fray_coordinator.protocol.transitions import Status
from fray_layouts.index_keys import Shape
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import AgentRecord, Holding, JobRecord, PlacementMember, ReservationRecord, Resources
from fray_layouts.spec import JobSpec
from fray_layouts.states import HoldingPhase, ReservationKind, ReservationState


def refusal(reservation: ReservationRecord, namespace: str) -> str:
    """The reason why jobs of the namespace may not enter, with the remedy; "" if they may."""
    if reservation.kind != ReservationKind.RESERVATION:
        return "it is a launch group, which runs only the jobs that it was launched with; name a reservation"
    if reservation.namespace != namespace:
        return f"it is for namespace {reservation.namespace}, not for {namespace}; make a reservation of your own"
    if reservation.state == ReservationState.ENDED:
        return f"it has ended: {reservation.reason}; make another one"
    return ""


def goes_into(spec: JobSpec, reservation: ReservationRecord) -> bool:
    """Whether a job of its namespace and pool enters by itself: it asks for the same device, and fits."""
    if refusal(reservation, spec.namespace) or spec.pool != reservation.pool:
        return False
    return any(_fits(spec, part) for part in owner_of_reservation(reservation).parts)


def _fits(spec: JobSpec, part: Part) -> bool:
    """Whether one replica fits into one bundle, and there can be enough of these."""
    shape = shape_of(spec)
    if shape.device != part.shape.device or spec.slices > part.slices > 0 or _exceeds_bundle(shape, part.shape):
        return False
    return spec.replicas <= part.count or not part.slices


def _exceeds_bundle(shape: Shape, bundle: Shape) -> bool:
    kind = HostKind(preemptible=not bundle.on_demand, inbound=True)
    return bool(shortage(shape, bundle.resources(), kind))


def held_by(reservation: ReservationRecord, agent: str) -> tuple[int, ...]:
    """The numbers of the bundles that the agent may use for jobs: a held reservation must name it for them."""
    if reservation.state != ReservationState.HELD:
        return ()
    return owner_of_reservation(reservation).bundles_of(agent)


def jobs_of(reservation: ReservationRecord) -> list[str]:
    """The jobs that a group was launched with, in order."""
    return [part.job for part in reservation.parts if part.job]


def end_reason(reservation: ReservationRecord, done: Collection[str], parent: JobRecord | None, now: float) -> str:
    """The reason why it must end now, for people; "" if it goes on.

    Args:
        done: jobs of a group that have ended, or whose records are gone.
        parent: the record of its parent, read after its own; None if it has no parent, or if that record is gone.
    """
    if reservation.state == ReservationState.ENDED:
        return ""
    if reservation.expires_at is not None and now >= reservation.expires_at:
        return "it was not renewed in time"
    if reservation.parent and not _runs_at(parent, reservation.parent_attempt):
        return f"its parent {reservation.parent} no longer runs"
    gone = [job for job in jobs_of(reservation) if job in done]
    if gone and reservation.state == ReservationState.FORMING:
        return f"job {gone[0]} ended before all could start"
    if gone and len(gone) == len(jobs_of(reservation)):
        return "all of its jobs have ended"
    return ""


def _runs_at(job: JobRecord | None, attempt: int) -> bool:
    return job is not None and job.status == Status.RUNNING and job.attempt == attempt


def ended(
    reservation: ReservationRecord, now: float, reason: str, seen: ReservationRecord | None = None
) -> ReservationRecord | None:
    """The record after its end; None if it has ended before, or was renewed after `seen`.

    The record still names its members, so that the jobs which run there can be found.

    seen: the version for which the end was decided; None if somebody wants it to end, whatever has happened to it.
    """
    renewed_since = seen is not None and seen.expires_at != reservation.expires_at
    if reservation.state == ReservationState.ENDED or renewed_since:
        return None
    return replace(reservation, state=str(ReservationState.ENDED), ended_at=now, reason=reason)


def renewed(reservation: ReservationRecord, now: float, ttl: float | None = None) -> ReservationRecord | None:
    """The record, renewed for `ttl` seconds or for as many as it was made with; None if it has ended, or has no ttl."""
    seconds = reservation.ttl if ttl is None else ttl
    if reservation.state == ReservationState.ENDED or seconds is None:
        return None
    return replace(reservation, ttl=seconds, expires_at=now + seconds)


LAST = -(10**6)
"""The priority of what a reservation would take beyond what it has. It is lower than that of any job."""


def units_of(
    reservation: ReservationRecord,
    live: Collection[str],
    used: Collection[str],
    done: Collection[str] = (),
    refusing: Collection[str] = (),
    places: Mapping[str, str] = MappingProxyType({}),
) -> list[Owner]:
    """The units of a held reservation, each as an owner that is `forming` unless its members are fixed.

    A unit is a slice, or a single bundle of a part without slices; the bundles of a part that is `spread`, or that must
    be in one zone or region, are one unit together. A complete unit is fixed if it is below `low`, or if one of its
    agents runs a job of the reservation. Any other unit may be given members, and keeps those that it has if it can.
    Above `low` it loses them to earlier owners, and is given members last. The part of a job that has ended is left
    out. The bundles of each unit are numbered from 0; `with_members` puts the units together again.

    If all bundles must be in one zone or region, the bundles that the reservation still has say in which one the others
    are given. If it has none left, all are given at once, as before it was held.

    Args:
        live: agents that may have bundles; the bundles of others are lost.
        used: agents that run a job of the reservation.
        done: jobs of the group that have ended.
        refusing: agents that can have none of its bundles now; they lose those that they have.
        places: by agent, the zone or the region that it is in, whichever the reservation's `same` says.
    """
    owner = owner_of_reservation(reservation)
    refused = [*owner.placement.refused, *sorted(refusing)]
    owner = with_changes(owner, placement=replace(owner.placement, refused=refused))
    live = set(live).difference(refusing)
    if owner.same:
        left = _members_of(owner.placement.members, range(owner.low), live)
        if not left:
            return [
                with_changes(owner, id=f"{owner.id}~0", placement=replace(owner.placement, members=[]), forming=True)
            ]
        owner = with_changes(owner, within=next(filter(None, (places.get(member.agent) for member in left)), ""))
    parts = [part for part in owner.parts if not part.job or part.job not in done]
    return [_unit_owner(owner, unit, live, used) for part in parts for unit in _units_of_part(part)]


def _unit_owner(owner: Owner, unit: Part, live: Collection[str], used: Collection[str]) -> Owner:
    members = _members_of(owner.placement.members, unit.bundles, live)
    is_whole = sum(len(member.bundles) for member in members) == unit.count
    is_needed = unit.bundles.stop <= owner.low
    return with_changes(
        owner,
        id=f"{owner.id}~{unit.first}",
        priority=owner.priority if is_needed or is_whole else LAST,
        parts=(with_changes(unit, first=0),),
        low=unit.count,
        placement=replace(owner.placement, members=_shifted(members, -unit.first)),
        forming=not (is_whole and (is_needed or any(member.agent in used for member in members))),
    )


def lacking_units(
    reservation: ReservationRecord, live: Collection[str], done: Collection[str], places: Mapping[str, str]
) -> list[Owner]:
    """The units that a held reservation needs and that have lost a host. The arguments are those of `units_of`."""
    units = units_of(reservation, live, used=live, done=done, places=places)
    return [unit for unit in units if unit.forming and may_wait(unit)]


def may_wait(unit: Owner) -> bool:
    """Whether room is kept for a unit until it is free. A unit beyond the minimum takes only what is free now."""
    return unit.priority != LAST


def _units_of_part(part: Part) -> list[Part]:
    if part.slices:
        size, slices = part.count // part.slices, 1
    else:
        size, slices = part.count if part.spread or part.same else 1, 0
    return [
        with_changes(part, first=first, count=size, slices=slices)
        for first in range(part.first, part.bundles.stop, size)
    ]


def _members_of(members: Iterable[PlacementMember], bundles: range, live: Collection[str]) -> list[PlacementMember]:
    kept = (
        replace(member, bundles=[number for number in member.bundles if number in bundles])
        for member in members
        if member.agent in live
    )
    return [member for member in kept if member.bundles]


def with_members(
    reservation: ReservationRecord, units: Mapping[str, Iterable[PlacementMember]]
) -> ReservationRecord | None:
    """The record with the members of all its units, by the units' ids; None if nothing changes."""
    by_agent: dict[str, PlacementMember] = {}
    for unit, members in units.items():
        for member in _shifted(members, int(unit.rpartition("~")[2])):
            known = by_agent.get(member.agent, replace(member, bundles=[]))
            by_agent[member.agent] = replace(known, bundles=sorted({*known.bundles, *member.bundles}))
    placement = reservation.placement
    wanted = sorted(by_agent.values(), key=lambda member: (member.bundles[0], member.agent))
    if bundles_by_agent(wanted) == bundles_by_agent(placement.members):
        return None
    return replace(reservation, placement=replace(placement, members=wanted, round=placement.round + 1))


def _shifted(members: Iterable[PlacementMember], by: int) -> list[PlacementMember]:
    return [replace(member, bundles=[number + by for number in member.bundles]) for member in members]


def private_views(
    reservation: Owner, hosts: Mapping[str, HostView], agents: Mapping[str, AgentRecord]
) -> list[HostView]:
    """The hosts of a held reservation in its private pool; of a group, in one pool for each of its jobs.

    Args:
        hosts: by agent, in the pool whose agents the reservation takes.
        agents: by id, as they were read last.
    """
    views: list[HostView] = []
    for member in reservation.placement.members:
        host, agent = hosts.get(member.agent), agents.get(member.agent)
        holding = agent.holdings.get(reservation.id) if agent is not None else None
        if host is None or holding is None or not _is_held(holding):
            continue
        by_job: dict[str, list[int]] = {}
        for number in set(member.bundles) & set(holding.bundles):
            by_job.setdefault(reservation.part_of(number).job, []).append(number)
        host = with_changes(host, uses=uses_of(agent, reservation.id)) if agent is not None else host
        views += [_private_view(reservation, host, job, numbers, holding) for job, numbers in by_job.items()]
    return views


def _is_held(holding: Holding) -> bool:
    return holding.phase in (HoldingPhase.RESERVED, HoldingPhase.RUNNING)


def _private_view(reservation: Owner, host: HostView, job: str, numbers: Iterable[int], holding: Holding) -> HostView:
    capacity = room_of_bundles((reservation.part_of(number).shape for number in numbers), host.capacity.device)
    view = with_changes(host, pool=pool_of_job(ReservationKeys.pool(reservation.id), job), capacity=capacity)
    return with_changes(view, busy=view.room if holding.phase == HoldingPhase.RUNNING else Room(), until=None)


def room_of_bundles(bundles: Iterable[Shape], device: str) -> Resources:
    """The resources that the bundles on one host offer together to the jobs in them. device: that of the host."""
    shapes = list(bundles)
    return Resources(
        cpu=sum(shape.cpu for shape in shapes),
        memory=sum(shape.memory for shape in shapes),
        disk=sum(shape.disk for shape in shapes),
        device=device if any(shape.device for shape in shapes) else "",
        device_count=sum(shape.device_count for shape in shapes),
    )


def pool_of_job(pool: str, job: str) -> str:
    """The pool in which a group's job finds the bundles bound to it; the reservation's own pool if `job` is ""."""
    return f"{pool}~{job}" if job else pool


def in_own_bundles(owner: Owner, reservations: Mapping[str, Owner]) -> Owner:
    """The owner, moved to the pool of its own bundles if it is a gang that belongs to a group.

    reservations: those that have not ended, by id.
    """
    group = reservations.get(ReservationKeys.of_pool(owner.pool))
    is_bound = group is not None and any(part.job == owner.id for part in group.parts)
    return with_changes(owner, pool=pool_of_job(owner.pool, owner.id)) if is_bound else owner
