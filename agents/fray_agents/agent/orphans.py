"""Room for jobs that wait to run again, on hosts where their own children use it.

A child with an id of its own runs on while its parent waits for its next attempt, which may adopt it. If the child uses
the room that the parent needs, and ends only with the parent, both wait for ever. So the child is put back. It is
claimed again once its parent runs, and spends no budget.
"""

import logging
from collections.abc import Sequence

from fray_agents.agent.held import HeldLease, HeldPlacement
from fray_agents.agent.membership import Membership
from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol.scheduling import shortage
from fray_coordinator.protocol.transitions import Status
from fray_coordinator.store.records import record_of
from fray_layouts.index_keys import PendingKey, Shape
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import JobRecord
from fray_layouts.states import ExitKind

log = logging.getLogger("fray")


async def make_room_for_parents(member: Membership, keys: Sequence[str], room: HeldPlacement | None = None) -> None:
    """Put back the children here of waiting jobs that would fit without them.

    Args:
        keys: entries of the pending index.
        room: the reservation in which the jobs would run; None: the host's own room.

    Raises StoreUnavailable: such a job cannot be read now.
    """
    parents = member.leases.parents()
    for entry in (PendingKey.parse(key) for key in keys if parents and any(f"-{parent}~" in key for parent in parents)):
        if entry is None or not shortage(entry.shape, member.leases.free(room), member.host_kind):
            continue
        if not member.leases.orphans_in_the_way(entry.job, [entry.shape], member.host_kind, room):
            continue
        try:
            job = record_of(await member.core.records.read(JobKeys.key(entry.job), JobRecord, one_of_many=True))
        except BadRecord:  # its claimer reports it
            continue
        if job is not None and job.status == Status.PENDING and job.attempt == entry.attempt:
            put_back_orphans(member, entry.job, [entry.shape], room)


def put_back_orphans(member: Membership, parent: str, wants: Sequence[Shape], room: HeldPlacement | None) -> None:
    """Put back children of a waiting job that use the room for which it waits. wants: what it waits for here."""
    for orphan in member.leases.orphans_in_the_way(parent, wants, member.host_kind, room):
        log.info("%s is put back: its parent %s waits for its room", _name(orphan), parent)
        orphan.ask_to_stop(_grace(orphan), ExitKind.YIELDED)


def _name(orphan: HeldLease | HeldPlacement) -> str:
    return orphan.owner.id if isinstance(orphan, HeldPlacement) else orphan.entry.job


def _grace(orphan: HeldLease | HeldPlacement) -> float:
    if isinstance(orphan, HeldPlacement):
        return orphan.grace
    return orphan.job.record.spec.grace if orphan.job is not None else 0.0
