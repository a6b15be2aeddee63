"""Creates, finds, renews and ends reservations and launch groups; while one is held, replaces its lost hosts.

People and programs call the first half. The reconciler calls the second: it replaces lost hosts of held reservations,
grows and shrinks them, and ends them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import compress
from typing import cast

from fray_coordinator.concurrency import decide_each, map_concurrently, map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, ReservationNotFound
from fray_coordinator.jobs import notifications, stopping
from fray_coordinator.jobs.lookup import find_reservation, jobs_by_id, read_jobs
from fray_coordinator.placements.tables import OwnerTable
from fray_coordinator.protocol.placements import reservations
from fray_coordinator.protocol.placements.assignment import Assignment
from fray_coordinator.protocol.placements.hosts import HostView
from fray_coordinator.protocol.placements.owners import GANG, RESERVATION, Owner, owner_of_reservation
from fray_coordinator.protocol.placements.reservations import (
    in_own_bundles,
    jobs_of,
    may_wait,
    private_views,
    units_of,
    with_members,
)
from fray_coordinator.protocol.placements.rounds import OwnerRecord
from fray_coordinator.protocol.transitions import is_terminal
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.errors import InvalidInput
from fray_layouts.index_keys import PendingKey, PlacementKey
from fray_layouts.object_keys import AgentKeys, JobKeys, PoolKeys, ReservationKeys
from fray_layouts.records import AgentRecord, JobRecord, PlacementMember, ReservationRecord
from fray_layouts.states import AgentState, HoldingPhase, ReservationKind, ReservationState, StopOrigin


async def create(core: Core, wanted: ReservationRecord) -> ReservationRecord:
    """Create a reservation: first its index entry, then its record, then a ring of the placements' bell.

    Raises StoreUnavailable: it may have been created; then it ends at its `expires_at`.
    """
    await notifications.enter(core, wanted)
    return await publish(core, wanted)


async def publish(core: Core, wanted: ReservationRecord) -> ReservationRecord:
    """Create the record of an entered reservation and ring the bell; returns an existing record if there is one."""
    written = await core.records.write(ReservationKeys.key(wanted.id), ReservationRecord, wanted, None)
    await notifications.ring_placements_bell(core)
    return written.stored.record if written.stored is not None else wanted


async def read(core: Core, reservation: str) -> Stored[ReservationRecord]:
    """The record of a reservation or a group.

    Raises ReservationNotFound: there is none with this id.
    """
    key = ReservationKeys.key(ReservationKeys.checked(reservation))
    found = await core.records.read(key, ReservationRecord)
    if found is None:
        remedy = "`fray reservations` lists those that exist"
        raise ReservationNotFound(f"there is no reservation {reservation} under {core.root}; {remedy}")
    return found


async def usable(core: Core, reservation: str, namespace: str) -> ReservationRecord:
    """Return the reservation if jobs of the namespace may use it.

    Raises:
        ReservationNotFound: there is none with this id.
        InvalidInput: it belongs to another namespace, has ended, or is a group.
    """
    found = (await read(core, reservation)).record
    if why := reservations.refusal(found, namespace):
        raise InvalidInput("reservation_id", reservation, why)
    return found


async def all_reservations(core: Core, problems: dict[str, str]) -> list[ReservationRecord]:
    """Every record, in order of submission; those that cannot be read are noted in `problems`."""
    keys = [row.key for row in await core.store.list(ReservationKeys.area) if ReservationKeys.parse(row.key)]

    async def one(key: str) -> ReservationRecord | None:
        return record_of(await core.records.read(key, ReservationRecord, one_of_many=True))

    found = [record for record in await map_noting_problems(keys, one, problems) if record is not None]
    return sorted(found, key=lambda record: (record.submitted_at, record.id))


async def renew(core: Core, reservation: str, ttl: float | None = None) -> ReservationRecord:
    """Restart the time to live of a reservation.

    Args:
        ttl: seconds from now; None: the seconds that it was created with.

    Raises:
        ReservationNotFound: there is none with this id.
        InvalidInput: it has ended, or it never expires because it was made without a ttl, and none is given.
    """
    known = await read(core, reservation)
    update = await core.records.change(
        known.key, ReservationRecord, lambda now: reservations.renewed(now, core.now(), ttl), known
    )
    record = record_of(update.stored)
    if record is None or not update.wrote:
        raise InvalidInput("reservation_id", reservation, _why_not_renewed(record))
    return record


async def release(core: Core, reservation: str, reason: str) -> ReservationRecord:
    """End a reservation and stop the jobs left in it; a reservation that has ended is left as it is.

    Raises ReservationNotFound: there is none with this id.
    """
    return await end(core, await read(core, reservation), reason, although_renewed=True)


async def end(
    core: Core, known: Stored[ReservationRecord], reason: str, although_renewed: bool = False
) -> ReservationRecord:
    """End a reservation or group: first its record, then the jobs left in it, then its index entry and its doorbell.

    although_renewed: end it also if it was renewed after `known` was read; otherwise it goes on.
    """
    seen = None if although_renewed else known.record
    update = await core.records.change(
        known.key, ReservationRecord, lambda now: reservations.ended(now, core.now(), reason, seen), known
    )
    record = record_of(update.stored) or known.record
    if update.wrote:
        await clear(core, record)
        await notifications.ring_placements_bell(core)
    return record


async def clear(core: Core, record: ReservationRecord) -> None:
    """Stop the jobs left in a reservation that has ended, and delete its index entry and its doorbell."""
    left = await jobs_in(core, record)
    await map_concurrently(left, lambda job: stop_left(core, job.id, record))
    for group in await _groups_in(core, record):
        await end(core, group, f"its reservation {record.id} has ended")
    await notifications.leave(core, record)
    await core.store.delete(PoolKeys.doorbell(ReservationKeys.pool(record.id)))


async def stop_left(core: Core, job: str, record: ReservationRecord) -> None:
    """Stop a job whose reservation has ended."""
    what = "group" if record.kind == ReservationKind.GROUP else "reservation"
    await stopping.stop(core, job, f"its {what} {record.id} has ended: {record.reason}", by=StopOrigin.RESERVATION)


async def _groups_in(core: Core, record: ReservationRecord) -> list[Stored[ReservationRecord]]:
    """The groups in a reservation that have not ended."""
    rows = await core.store.list(PlacementKey.prefix(ReservationKeys.pool(record.id)))
    entries = [entry for entry in (PlacementKey.parse(row.key) for row in rows) if entry and entry.kind == RESERVATION]
    keys = [ReservationKeys.key(entry.owner) for entry in entries]
    found = await map_concurrently(keys, lambda key: core.records.read(key, ReservationRecord, one_of_many=True))
    return [group for group in found if group is not None]


async def jobs_in(core: Core, record: ReservationRecord) -> list[JobRecord]:
    """The jobs in a reservation that have not ended, in order of submission: waiting ones, and those of its agents."""
    pool = ReservationKeys.pool(record.id)
    waiting = [PendingKey.parse(row.key) for row in await core.store.list(PendingKey.prefix(pool))]
    gangs = [PlacementKey.parse(row.key) for row in await core.store.list(PlacementKey.prefix(pool))]
    ids = {entry.job for entry in waiting if entry is not None}
    ids |= {entry.owner for entry in gangs if entry is not None and entry.kind == GANG}
    ids |= set(reservations.jobs_of(record))
    for holdings in await map_concurrently(record.placement.members, lambda member: _held_by(core, member.agent)):
        ids |= holdings
    found = await read_jobs(core, sorted(ids), problems={})
    return [job for job in found if job.spec.pool == pool and not is_terminal(job)]


async def _held_by(core: Core, agent: str) -> set[str]:
    """The ids that the agent's heartbeat lists."""
    try:
        found = await core.records.read(AgentKeys.key(agent), AgentRecord, one_of_many=True)
    except BadRecord:  # the repair finds its jobs
        return set()
    return set(found.record.holdings) if found is not None else set()


async def why_it_ends(core: Core, record: ReservationRecord, done: Collection[str], problems: Mapping[str, str]) -> str:
    """The reason why the reservation must end now; "" if it goes on.

    Args:
        done: jobs of the group that have ended.
        problems: jobs of the group that cannot be read. A forming group with an ended job must end, whatever the
            others.

    Raises BadRecord: its parent or its surrounding reservation cannot be read, or the answer depends on unreadable
        jobs.
    """
    if around := ReservationKeys.of_pool(record.pool):
        found = await find_reservation(core, around)
        if found is None or found.state == ReservationState.ENDED:
            return f"its reservation {around} has ended"
    parent = None
    if record.parent:
        parent = record_of(await core.records.read(JobKeys.key(record.parent), JobRecord, one_of_many=True))
    reason = reservations.end_reason(record, done, parent, core.now())
    if problems and not reason:
        raise BadRecord("; ".join(problems.values()))
    return reason


async def ended_jobs(core: Core, jobs: Collection[str], problems: dict[str, str]) -> set[str]:
    """Those of these jobs that have ended or are gone; jobs that cannot be read are noted in `problems`."""
    found = await jobs_by_id(core, sorted(jobs), problems)
    return {job for job, record in found.items() if record is None or is_terminal(record)}


async def unreadable_jobs(core: Core, jobs: Collection[str]) -> set[str]:
    """Those of these jobs whose records cannot be read, so that nobody can run them or say that they have ended."""

    async def is_unreadable(job: str) -> bool:
        try:
            await core.records.read(JobKeys.key(job), JobRecord, one_of_many=True)
        except BadRecord:
            return True
        return False

    wanted = sorted(jobs)
    return set(compress(wanted, await map_concurrently(wanted, is_unreadable)))


def _why_not_renewed(record: ReservationRecord | None) -> str:
    if record is None:
        return "it is gone; make another one"
    if record.state == ReservationState.ENDED:
        return f"it has ended: {record.reason}; make another one"
    return "it was made without a ttl, so it never expires and needs no renewal; release it when you no longer need it"


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
        done |= await ended_jobs(self.core, unknown, problems)
        lost = await unreadable_jobs(self.core, unknown - done) if is_held and problems else set()
        reason = await why_it_ends(self.core, record, done | lost, problems)
        if not reason:
            return False
        if (await end(self.core, stored, reason)).state != ReservationState.ENDED:
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
