"""Explains in one line for people why a job waits in a reservation or with its launch group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.jobs.lookup import find_reservation
from fray_coordinator.jobs.why_gathering import why_gathering
from fray_coordinator.jobs.why_machines import with_machines
from fray_coordinator.protocol.placements.assignment import assign
from fray_coordinator.protocol.placements.hosts import Room, host_view
from fray_coordinator.protocol.placements.owners import Owner, owner_of_job, owner_of_reservation
from fray_coordinator.protocol.placements.private_pools import in_own_bundles, private_views
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import AgentRecord, JobRecord, Placement, ReservationRecord
from fray_layouts.states import ReservationKind, ReservationState
from fray_layouts.wording import first_names

_LEVELS = 2
"""Levels of nesting: a group may be in a reservation, and a reservation is in nothing."""


async def reservations_around(core: Core, jobs: Iterable[JobRecord]) -> dict[str, ReservationRecord]:
    """By id: the reservations and groups that these jobs are in, and the reservations that such groups are in.

    Reservations that cannot be read are left out.
    """
    pools = {job.spec.pool for job in jobs}
    around: dict[str, ReservationRecord] = {}
    for _ in range(_LEVELS):
        ids = {ReservationKeys.of_pool(pool) for pool in pools} - {"", *around}
        found = await map_noting_problems(sorted(ids), lambda reservation: find_reservation(core, reservation), {})
        around |= {record.id: record for record in found if record is not None}
        pools = {record.pool for record in around.values()}
    return around


def why_in_reservation(
    job: JobRecord,
    record: ReservationRecord | None,
    live: Sequence[AgentRecord],
    now: float,
    machines: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Why a job that waits in a private pool has not started.

    Args:
        record: of its reservation; None if it is not known.
        live: all live agents.
        machines: by pool, how its machines matter (`machines_for`).
    """
    if record is None:
        return f"it waits in {ReservationKeys.of_pool(job.spec.pool)}, which does not exist yet, or cannot be read"
    owner = owner_of_reservation(record)
    is_group = record.kind == ReservationKind.GROUP
    what = f"its {'group' if is_group else 'reservation'} {record.id}"
    if record.state == ReservationState.ENDED:
        return f"{what} has ended ({record.reason}); it will be stopped"
    if record.state == ReservationState.FORMING:
        start = "starts all of its jobs at once" if is_group else "does not have its minimum of places yet"
        return f"{what} {start}: {with_machines(why_gathering(owner, live, now), record.pool, live, machines)}"
    if job.spec.same and _is_split(job, owner, live):
        return (
            f"{what} is held, and has places enough for its {job.spec.replicas} replicas, but not in one "
            f"{job.spec.same}; launch it without same, or wait until more places come"
        )
    return f"{what} is held, and {_why_not_in(job, owner, is_group)}"


def _is_split(job: JobRecord, reservation: Owner, live: Sequence[AgentRecord]) -> bool:
    """Whether the reservation has room for the whole gang, but not within one zone or region."""
    agents = {agent.id: agent for agent in live}
    hosts = {agent.id: host_view(agent, {}) for agent in live}
    views = [replace(view, busy=Room()) for view in private_views(reservation, hosts, agents)]
    gang = replace(in_own_bundles(owner_of_job(job), {reservation.id: reservation}), placement=Placement())
    together, anywhere = (assign(views, [replace(gang, same=same)])[gang.id].members for same in (gang.same, ""))
    return bool(anywhere) and not together


def _why_not_in(job: JobRecord, owner: Owner, is_group: bool) -> str:
    members = owner.placement.members
    if is_group:
        wanted = {number for part in owner.parts if part.job == job.id for number in part.bundles}
        lacking = wanted - {number for member in members for number in member.bundles}
        if lacking:
            return (
                f"{len(lacking)} of the {len(wanted)} places of this job were lost with their hosts; others are sought"
            )
        hosts = sorted({m.host or m.agent for m in members if wanted & set(m.bundles)})
        return f"{first_names(hosts, 3)} should start it soon"
    has, total = sum(len(member.bundles) for member in members), sum(part.count for part in owner.parts)
    return f"no room is left for it in its {has} of at most {total} places, or an agent should claim it soon"
