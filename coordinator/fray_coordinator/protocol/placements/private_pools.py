"""Private pools: the bundles that agents hold for a reservation, as room for the gangs and groups in it.

**Invariant.** The jobs in a reservation never use more of a host than the bundles that the reservation holds there.

**Unsafe sequence.**

1. Agent A holds half of its host for reservation R, and another owner has the other half.
2. The pass sees A as a member of R, and gives a gang in R the whole host.

Or: the pass gives a small job of a group the bundles that were gathered for the group's large job.

**Why this cannot happen.** The room is the sum of those bundles that both the record names and the agent's heartbeat
lists. A job of a group finds only the bundles that are bound to it, as if they were in a pool of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fray_coordinator.protocol.placements.hosts import HostView, Room, uses_of
from fray_coordinator.protocol.placements.owners import Owner
from fray_layouts.index_keys import Shape
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import AgentRecord, Holding, Resources
from fray_layouts.states import HoldingPhase


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
        host = replace(host, uses=uses_of(agent, reservation.id)) if agent is not None else host
        views += [_private_view(reservation, host, job, numbers, holding) for job, numbers in by_job.items()]
    return views


def _is_held(holding: Holding) -> bool:
    return holding.phase in (HoldingPhase.RESERVED, HoldingPhase.RUNNING)


def _private_view(reservation: Owner, host: HostView, job: str, numbers: Iterable[int], holding: Holding) -> HostView:
    capacity = room_of_bundles((reservation.part_of(number).shape for number in numbers), host.capacity.device)
    view = replace(host, pool=pool_of_job(ReservationKeys.pool(reservation.id), job), capacity=capacity)
    return replace(view, busy=view.room if holding.phase == HoldingPhase.RUNNING else Room(), until=None)


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
    return replace(owner, pool=pool_of_job(owner.pool, owner.id)) if is_bound else owner
