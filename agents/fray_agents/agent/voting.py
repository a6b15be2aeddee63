"""Does for one agent what an owner's record says: reserves room, votes, starts, stops and releases.

`fray_coordinator.protocol.placements.votes` decides what a record means.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, cast

from fray_agents.agent.held import HeldBundle, HeldPlacement
from fray_agents.agent.leases import Leases
from fray_agents.agent.membership import Membership
from fray_agents.agent.overcommit import put_back_orphans
from fray_coordinator.core import Core
from fray_coordinator.jobs.notifications import ring_placements_bell
from fray_coordinator.protocol.placements.launching import gang_port_names
from fray_coordinator.protocol.placements.owners import GANG
from fray_coordinator.protocol.placements.rounds import OwnerRecord, owner_of, placed
from fray_coordinator.protocol.placements.votes import (
    MemberAction,
    Vote,
    Voter,
    member_action,
    phase_of_owner,
    withdrawn,
)
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import JobRecord, ReservationRecord
from fray_layouts.spec import is_gang
from fray_layouts.states import ExitKind, HoldingPhase
from fray_runtime.directories import UntrustedDirectory
from fray_runtime.network import held_ports

log = logging.getLogger("fray")

BEATS_A_SECOND = 1000.0
"""Upper bound on heartbeats in which the agents of one owner report that they released it: a bucket takes so many.
An agent that the next round names meanwhile reports both in one heartbeat."""

StoredOwner: TypeAlias = Stored[JobRecord] | Stored[ReservationRecord]


@dataclass(slots=True)
class Voting:
    """The votes of one agent.

    Attributes:
        member: the agent's membership.
        start: begins to run a gang's replicas, and calls `let_go` in the end.
        freed: called when room became free.
    """

    member: Membership
    start: Callable[[HeldPlacement], None]
    freed: Callable[[], None]

    @property
    def _leases(self) -> Leases:
        return self.member.leases

    async def follow(self, found: StoredOwner | None, held: HeldPlacement | None) -> None:
        """Do what the owner's record, which was just read, says.

        Args:
            found: the record; None: it is gone.
            held: the agent's holding of the owner; None: it has none.

        Raises:
            StoreError, BadRecord: as writes of records do.
        """
        if held is None:
            if (
                found is not None
                and _is_owner(found.record)
                and self._member_action(found, None) in (MemberAction.TAKE, MemberAction.REFUSE)
            ):
                self._take(found)
            return
        action = self._member_action(found, held)
        if found is not None:
            held.record, held.owner = found, owner_of(found.record)
        await self._act(action, held)

    def _member_action(self, found: StoredOwner | None, held: HeldPlacement | None) -> MemberAction:
        member, record = self.member, found.record if found is not None else None
        owner = owner_of(found.record) if found is not None else held.owner if held is not None else None
        if owner is None:
            return MemberAction.NOTHING
        voter = Voter(member.id, member.leaving or member.draining, member.unfit)
        numbers = tuple(sorted(bundle.number for bundle in held.bundles)) if held is not None else ()
        vote = Vote(held.attempt, held.round, numbers, held.phase) if held is not None else None
        stopped = isinstance(record, JobRecord) and record.stop is not None
        return member_action(voter, owner, phase_of_owner(record), vote, stopped)

    async def _act(self, action: MemberAction, held: HeldPlacement) -> None:
        match action:
            case MemberAction.RELEASE:
                await self.let_go(held)
            case MemberAction.TAKE | MemberAction.REFUSE:
                await self.let_go(held)
                self._take(held.record)
            case MemberAction.RESERVE:
                self._reserve(held)
            case MemberAction.WITHDRAW:
                await self._withdraw(held)
            case MemberAction.START:
                self._start(held)
            case MemberAction.STOP:
                held.ask_to_stop(held.grace, ExitKind.STOPPED)
            case MemberAction.ABANDON:
                held.ask_to_stop(held.grace, ExitKind.LOST)

    def _take(self, found: StoredOwner) -> None:
        """Keep freed resources for the bundles that the owner has here, and vote if there is room now."""
        owner = owner_of(found.record)
        reservation = ReservationKeys.of_pool(owner.pool)
        room = self._leases.placements.get(reservation) if reservation else None
        if reservation and room is None:
            return  # a later poll may find it
        device = self._leases.capacity.device
        numbers = owner.bundles_of(self.member.id)
        bundles = tuple(HeldBundle(number=n, wants=owner.part_of(n).shape_on(device), room=room) for n in numbers)
        held = HeldPlacement(owner, found, bundles)
        self._leases.add_placement(held)
        if self.member.unfit or not self._leases.could_have(bundles, self.member.host_kind):
            self._refuse(held)
        elif self._member_action(found, held) is MemberAction.RESERVE:
            self._reserve(held)

    def _reserve(self, held: HeldPlacement) -> None:
        """Vote if there is room; the next heartbeat lists the vote."""
        if not self._leases.reserve(held.bundles, self.member.host_kind):
            put_back_orphans(self.member, held.owner.id, [b.shape for b in held.bundles], held.bundles[0].room)
            return
        job = held.record.record
        names = gang_port_names(job.spec, [b.number for b in held.bundles]) if isinstance(job, JobRecord) else []
        try:
            held.ports = held.resources.enter_context(held_ports(names, self.member.core.rng)) if names else None
        except (OSError, UntrustedDirectory) as error:
            log.warning("%s is refused: %s", held.owner.id, error)
            self._refuse(held)
            return
        held.phase = HoldingPhase.RESERVED
        self.member.request_beat()

    def _refuse(self, held: HeldPlacement) -> None:
        for bundle in held.bundles:
            bundle.taken, bundle.gpus = False, ()
        held.phase = HoldingPhase.REFUSED
        self.member.request_beat()

    def _start(self, held: HeldPlacement) -> None:
        """Run the gang that was started, unless this agent may have lost its leases: then a later poll decides."""
        if held.owner.kind == GANG and self.member.trusts():
            held.phase = HoldingPhase.RUNNING
            log.info("%s: attempt %d is started", held.owner.id, held.attempt)
            if self.member.leaving:
                held.ask_to_stop(0.0, ExitKind.PREEMPTED)
            self.start(held)

    async def _withdraw(self, held: HeldPlacement) -> None:
        """Move the owner's round on, so that the vote lapses; if another write came first, the next poll decides."""
        if await _move_round_on(self.member.core, held.record):
            log.info("%s: the vote is withdrawn", held.owner.id)
            await self.let_go(held)
            await ring_placements_bell(self.member.core)

    async def let_go(self, held: HeldPlacement) -> None:
        """Release what is held for an owner; no process of it may be left here."""
        self._leases.release(held)
        await held.resources.aclose()
        if held.listed:
            together = held.owner.low / BEATS_A_SECOND
            self.member.request_beat(self.member.core.rng.uniform(0.0, together))
        self.freed()


def _is_owner(record: OwnerRecord) -> bool:
    return not isinstance(record, JobRecord) or is_gang(record.spec)


async def _move_round_on(core: Core, stored: StoredOwner) -> bool:
    """Move the owner's round on from exactly the given record; whether that was written."""
    wanted = placed(stored.record, withdrawn(owner_of(stored.record).placement))
    known = cast("Stored[OwnerRecord]", stored)
    return (await core.records.write(stored.key, type(stored.record), wanted, known)).wrote
