"""Launches groups: all jobs of a group start, or none. `protocol.placements` explains the order of the writes."""

from collections.abc import Sequence
from dataclasses import dataclass

from fray_coordinator.core import Core
from fray_coordinator.jobs import placement_index
from fray_coordinator.jobs.lookup import live_agents, read_agents
from fray_coordinator.jobs.submission import Submitted, submit
from fray_coordinator.placements import reservations
from fray_coordinator.protocol.placements import launching
from fray_coordinator.protocol.placements.owners import owner_of_reservation
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import JobIds, ReservationKeys
from fray_layouts.records import ReservationRecord
from fray_layouts.spec import JobSpec
from fray_layouts.states import ReservationKind


@dataclass(frozen=True, slots=True)
class GroupWish:
    """The request for a launch group.

    Attributes:
        name: for people; also the beginning of its id.
        same_region, same_zone: all bundles in the same one; the region is ignored if no agent states its region.
        reservation: id of the reservation whose bundles the group uses; "" for none.
    """

    name: str
    same_region: bool = False
    same_zone: bool = False
    reservation: str = ""


async def launch(
    core: Core,
    specs: Sequence[JobSpec],
    wish: GroupWish,
    attempt_of_parent: int | None = None,
    ancestors: Sequence[str] = (),
) -> list[Submitted]:
    """Submit jobs that start all at once or not at all. Writes the index entry, then the jobs, then the group's record.

    Args:
        specs: checked specs of one pool and one namespace.
        attempt_of_parent, ancestors: as for `submit`.

    Raises:
        InvalidInput: they can never start together; the message says which one and what is short. Nothing was
            submitted.
        ReservationNotFound: there is no such reservation.
        ParentNotRunning: as `submit`.
    """
    pool = launching.common_pool(specs)
    around = await reservations.usable(core, wish.reservation, specs[0].namespace) if wish.reservation else None
    ids = [JobIds.fresh(spec.name, core.now(), core.rng.token()) for spec in specs]
    record = ReservationRecord(
        id=JobIds.fresh(wish.name, core.now(), core.rng.token()),
        kind=ReservationKind.GROUP,
        name=wish.name,
        namespace=specs[0].namespace,
        pool=ReservationKeys.pool(around.id) if around is not None else pool,
        priority=max(spec.priority for spec in specs),
        submitted_at=core.now(),
        parts=[launching.bundles_of_job(spec, job) for spec, job in zip(specs, ids, strict=True)],
        low=sum(spec.replicas for spec in specs),
    )
    record.same = await _checked_place(core, record, wish, around.pool if around is not None else pool)
    await placement_index.enter(core, record)
    inside = [launching.in_private_pool(spec, record.id) for spec in specs]
    submitted = await submit(core, inside, attempt_of_parent, ids, ancestors)
    record.ancestors = submitted[0].job.ancestors
    await reservations.publish(core, record)
    return submitted


async def _checked_place(core: Core, record: ReservationRecord, wish: GroupWish, agents_pool: str) -> str:
    """The `same` of the group's record. Raises InvalidInput if the group can never start on the present agents."""
    agents = live_agents(await read_agents(core, {}), core.now())
    agents = [agent for agent in agents if agent.pool == agents_pool]
    launching.check_can_ever_fit(owner_of_reservation(record), agents)
    if wish.same_zone and not any(agent.zone for agent in agents):
        raise InvalidInput("group.same_zone", True, "no live agent states its zone; start agents with --zone")
    if wish.same_zone:
        return "zone"
    return "region" if wish.same_region and any(agent.region for agent in agents) else ""
