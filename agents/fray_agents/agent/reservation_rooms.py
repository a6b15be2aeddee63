"""The bundles of held reservations on one agent: room for the jobs that wait in their private pools.

Once a reservation is held there are no votes. The agent takes the bundles that the record assigns to it as soon as it
has room, and only the agent itself says whether it has them. A bundle that is assigned elsewhere takes no new job, and
the agent gives it up once no job in the reservation needs its room. An agent that may take no work, and runs none of
the reservation's jobs, refuses it for that time, so that its bundles go to other agents.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from msgspec.structs import replace

from fray_agents.agent.held import HeldBundle, HeldPlacement
from fray_agents.agent.leases import Leases
from fray_agents.agent.membership import Membership
from fray_coordinator.protocol.placements.families import families_first
from fray_coordinator.protocol.placements.owners import RESERVATION, Owner, owner_of_reservation
from fray_coordinator.protocol.placements.reservations import held_by
from fray_coordinator.protocol.scheduling import HostKind, remaining_after, shortage
from fray_coordinator.store.records import Stored
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import ReservationRecord, Resources
from fray_layouts.states import HoldingPhase, ReservationState

log = logging.getLogger("fray")


@dataclass(slots=True)
class ReservationRooms:
    """Takes and gives up bundles of reservations that are no longer forming.

    Attributes:
        member: the agent's membership.
        let_go: frees the room that is held for an owner.
        opened: called when there may be room for jobs in a private pool.
    """

    member: Membership
    let_go: Callable[[HeldPlacement], Awaitable[None]]
    opened: Callable[[], None]

    @property
    def _leases(self) -> Leases:
        return self.member.leases

    async def follow(self, found: Stored[ReservationRecord] | None, held: HeldPlacement | None) -> None:
        """Do what a record that was just read says.

        Args:
            found: the record of a reservation that is held or has ended; None: the record is gone.
            held: the agent's holding of it; None: it has none.
        """
        assigned = self._assigned(found)
        if held is None:
            if found is None or not assigned:
                return
            held = HeldPlacement(owner_of_reservation(found.record), found, ())
            self._leases.add_placement(held)
        if found is not None:
            held.record, held.owner = found, owner_of_reservation(found.record)
        before = held.holding()
        refuses = self._refuses(found, held)
        if refuses:
            assigned = ()
        self._give_up(held, assigned)
        self._take(held, assigned)
        if not held.bundles and not self._is_used(held) and not refuses:
            log.info("%s: its bundles are given up", held.owner.id)
            await self.let_go(held)
            return
        held.round = held.owner.placement.round
        if any(bundle.taken for bundle in held.bundles):
            held.phase = HoldingPhase.RUNNING if self._is_used(held) else HoldingPhase.RESERVED
        elif refuses or held.phase == HoldingPhase.REFUSED:
            held.phase = HoldingPhase.REFUSED if refuses else ""
        if held.holding() != before:
            self.member.request_beat()
            self.opened()

    def _assigned(self, found: Stored[ReservationRecord] | None) -> tuple[int, ...]:
        """The bundles that are assigned to the agent; an agent that leaves gets none."""
        if found is None or self.member.leaving or self.member.draining:
            return ()
        return held_by(found.record, self.member.id)

    def _refuses(self, found: Stored[ReservationRecord] | None, held: HeldPlacement) -> bool:
        """Whether the agent refuses a held reservation until it may take work again."""
        member = self.member
        is_held = found is not None and found.record.state == ReservationState.HELD
        return is_held and member.unfit and not (member.leaving or member.draining or self._is_used(held))

    def _give_up(self, held: HeldPlacement, assigned: tuple[int, ...]) -> None:
        """Give up bundles that are no longer assigned to the agent, as far as no job needs their room."""
        for bundle in [b for b in held.bundles if b.number not in assigned]:
            if not bundle.taken or not shortage(bundle.shape, self._leases.free(held), HostKind()):
                held.bundles = tuple(b for b in held.bundles if b is not bundle)
                self._leases.changed.set()

    def _take(self, held: HeldPlacement, assigned: tuple[int, ...]) -> None:
        """Take the bundles that are assigned to the agent, each as soon as there is room for it."""
        known = {bundle.number for bundle in held.bundles}
        around = self._leases.placements.get(ReservationKeys.of_pool(held.owner.pool))
        device = self._leases.capacity.device
        held.bundles += tuple(
            HeldBundle(number=number, wants=held.owner.part_of(number).shape_on(device), room=around)
            for number in assigned
            if number not in known
        )
        for bundle in held.bundles:
            may_take = not (self.member.unfit or families_first(held.owner.placement))
            if not bundle.taken and bundle.number in assigned and may_take:
                self._leases.reserve([bundle], self.member.host_kind)

    def _is_used(self, held: HeldPlacement) -> bool:
        """Whether a task runs in it or has room in it; a gang's bundle that waits for room does not count."""
        inside = (task for task in self._leases.tasks() if task.room is held)
        return any(not isinstance(task, HeldBundle) or task.taken for task in inside)


def is_open(held: HeldPlacement) -> bool:
    """Whether jobs may start in this holding: it is part of a held reservation, with room."""
    record = held.record.record
    if held.owner.kind != RESERVATION or not isinstance(record, ReservationRecord):
        return False
    return record.state == ReservationState.HELD and any(bundle.taken for bundle in held.bundles)


def room_for_jobs(held: HeldPlacement, leases: Leases, agent: str, entry: PendingKey) -> Resources:
    """The free resources of the agent's assigned bundles that are not kept for gangs which come before the entry."""
    left = leases.unreserved(held, entry)
    assigned = held.owner.bundles_of(agent)
    for bundle in held.bundles:
        if bundle.taken and bundle.number not in assigned:
            left = remaining_after(left, bundle.shape)
    return replace(left, cpu=max(left.cpu, 0), memory=max(left.memory, 0), disk=max(left.disk, 0))


def jobs_bound(owner: Owner, agent: str) -> set[str]:
    """The jobs of a group to which the agent's bundles are bound; "" stands for a bundle that any job may use."""
    return {owner.part_of(number).job for number in owner.bundles_of(agent)}
