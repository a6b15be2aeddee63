"""The reconciler's care for held reservations: it replaces lost hosts, grows and shrinks them, and ends them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from fray_coordinator.concurrency import decide_each, map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.placements import reservations
from fray_coordinator.placements.owner_table import OwnerTable
from fray_coordinator.protocol.placements.assignment import Assignment
from fray_coordinator.protocol.placements.hosts import HostView
from fray_coordinator.protocol.placements.owners import RESERVATION, Owner, owner_of_reservation
from fray_coordinator.protocol.placements.private_pools import in_own_bundles, private_views
from fray_coordinator.protocol.placements.reservations import jobs_of, may_wait, units_of, with_members
from fray_coordinator.protocol.placements.rounds import OwnerRecord
from fray_coordinator.store.records import Stored
from fray_layouts.records import AgentRecord, PlacementMember, ReservationRecord
from fray_layouts.states import AgentState, HoldingPhase, ReservationState


@dataclass(slots=True)
class HeldReservations:
    """Maintains held reservations, and ends any reservation that must end.

    Attributes:
        owners: the owners that have not ended.
    """

    core: Core
    owners: OwnerTable
    _read_at: float = float("-inf")
    _done: dict[str, set[str]] = field(default_factory=dict)

    def due(self) -> bool:
        """Whether there are reservations, and it is time to read them."""
        since = self.core.clock.boottime() - self._read_at
        return since >= self.core.settings.pass_interval and self.any()

    async def end_due(self, agents: Mapping[str, AgentRecord]) -> None:
        """Read the reservations, and end those that must end."""
        self._read_at = self.core.clock.boottime()
        await self.owners.read(stored.key for stored in self.owners.reservations())

        async def end_if_due(stored: Stored[ReservationRecord]) -> None:
            await self.end_if_due(stored, agents)

        await map_noting_problems(self.owners.reservations(), end_if_due, self.owners.problems, _key, at_once=1)
        self._done = {owner: done for owner, done in self._done.items() if owner in self.owners.owners()}

    async def end_if_due(
        self, stored: Stored[ReservationRecord], agents: Mapping[str, AgentRecord] | None = None
    ) -> bool:
        """End a reservation that must end now; returns whether it did.

        agents: saves reads for a held group: a job that one of these agents lists counts as running without a read, and
            a job whose record cannot be read counts as ended. None reads all jobs.
        """
        record = stored.record
        listed = {held for agent in (agents or {}).values() for held in agent.holdings}
        done = self._done.setdefault(record.id, set())
        is_held = agents is not None and record.state == ReservationState.HELD
        unknown = set(jobs_of(record)) - done - (listed if is_held else set())
        problems: dict[str, str] = {}
        done |= await reservations.ended_jobs(self.core, unknown, problems)
        lost = await reservations.unreadable_jobs(self.core, unknown - done) if is_held and problems else set()
        reason = await reservations.why_it_ends(self.core, record, done | lost, problems)
        if not reason:
            return False
        if (await reservations.end(self.core, stored, reason)).state != ReservationState.ENDED:
            return False  # it was renewed meanwhile
        self.owners.keep(stored.key, None)
        return True

    def divided(self, owners: Mapping[str, Owner], agents: Mapping[str, AgentRecord]) -> dict[str, Owner]:
        """The owners, with held reservations split into units, and the gangs of groups moved to the group's bundles."""
        live = {a.id for a in agents.values() if a.state == AgentState.LIVE and a.supports_placements and not a.drain}
        divided = {owner.id: in_own_bundles(owner, owners) for owner in owners.values()}

        def units(stored: Stored[ReservationRecord]) -> list[Owner]:
            record = stored.record
            used = {agent for agent, now in agents.items() if _is_in(HoldingPhase.RUNNING, record.id, now)}
            refusing = {agent for agent, now in agents.items() if _is_in(HoldingPhase.REFUSED, record.id, now)}
            places = {agent: getattr(now, record.same) for agent, now in agents.items()} if record.same else {}
            return units_of(record, live, used, self._done.get(record.id, set()), refusing, places)

        held = self.owners.held()
        for stored in held:
            divided.pop(stored.record.id, None)
        return divided | {
            unit.id: unit for found in decide_each(held, units, self.owners.problems, _key) for unit in found
        }

    def views(self, hosts: Mapping[str, HostView], agents: Mapping[str, AgentRecord]) -> list[HostView]:
        """The hosts of held reservations as members of their private pools. hosts: by agent, in their own pools."""

        def views(stored: Stored[ReservationRecord]) -> list[HostView]:
            return private_views(owner_of_reservation(stored.record), hosts, agents)

        found = decide_each(self.owners.held(), views, self.owners.problems, _key)
        return [view for of_one in found for view in of_one]

    async def write(self, divided: Mapping[str, Owner], found: Mapping[str, Assignment]) -> list[Stored[OwnerRecord]]:
        """Write what the units were assigned; returns the records that changed."""
        changed: list[Stored[OwnerRecord]] = []

        async def write(stored: Stored[ReservationRecord]) -> None:
            units = {unit: owner for unit, owner in divided.items() if unit.startswith(f"{stored.record.id}~")}
            wanted = with_members(
                stored.record, {unit: _members(owner, found.get(unit)) for unit, owner in units.items()}
            )
            if wanted is None:
                return
            written = await self.core.records.write(stored.key, ReservationRecord, wanted, stored, one_of_many=True)
            now = cast(Stored[OwnerRecord] | None, written.stored)
            self.owners.keep(stored.key, now)
            if written.wrote and now is not None:
                changed.append(now)

        await self.owners.each_held(write)
        return changed

    def has_missing_bundles(self, owner: Owner, member: PlacementMember, agent: AgentRecord) -> bool:
        """Whether the owner is a held reservation, and the member's agent does not list all of its bundles yet."""
        holding = agent.holdings.get(owner.id)
        has = set(holding.bundles) if holding is not None else set()
        return owner.kind == RESERVATION and not owner.forming and not set(member.bundles) <= has

    def any(self) -> bool:
        """Whether there are reservations."""
        return bool(self.owners.reservations())


def _key(stored: Stored[ReservationRecord]) -> str:
    return stored.key


def _is_in(phase: HoldingPhase, reservation: str, agent: AgentRecord) -> bool:
    holding = agent.holdings.get(reservation)
    return holding is not None and holding.phase == phase


def _members(unit: Owner, given: Assignment | None) -> tuple[PlacementMember, ...]:
    if given is None:
        return tuple(unit.placement.members)
    is_free = given.until == 0.0
    return given.members if is_free or may_wait(unit) else ()
