"""Creates, finds, renews and ends reservations and launch groups, and stops the jobs left in them."""

from collections.abc import Collection, Mapping
from itertools import compress

from fray_coordinator.concurrency import map_concurrently, map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord, ReservationNotFound
from fray_coordinator.jobs import placement_index, stopping
from fray_coordinator.jobs.lookup import find_reservation, jobs_by_id, read_jobs
from fray_coordinator.protocol.placements import reservations
from fray_coordinator.protocol.placements.owners import GANG, RESERVATION
from fray_coordinator.protocol.transitions import is_terminal
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.errors import InvalidInput
from fray_layouts.index_keys import PendingKey, PlacementKey
from fray_layouts.object_keys import AgentKeys, JobKeys, PoolKeys, ReservationKeys
from fray_layouts.records import AgentRecord, JobRecord, ReservationRecord
from fray_layouts.states import ReservationKind, ReservationState, StopOrigin


async def create(core: Core, wanted: ReservationRecord) -> ReservationRecord:
    """Create a reservation: first its index entry, then its record, then a ring of the placements' bell.

    Raises StoreUnavailable: it may have been created; then it ends at its `expires_at`.
    """
    await placement_index.enter(core, wanted)
    return await publish(core, wanted)


async def publish(core: Core, wanted: ReservationRecord) -> ReservationRecord:
    """Create the record of an entered reservation and ring the bell; returns an existing record if there is one."""
    written = await core.records.write(ReservationKeys.key(wanted.id), ReservationRecord, wanted, None)
    await placement_index.ring_bell(core)
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
        await placement_index.ring_bell(core)
    return record


async def clear(core: Core, record: ReservationRecord) -> None:
    """Stop the jobs left in a reservation that has ended, and delete its index entry and its doorbell."""
    left = await jobs_in(core, record)
    await map_concurrently(left, lambda job: stop_left(core, job.id, record))
    for group in await _groups_in(core, record):
        await end(core, group, f"its reservation {record.id} has ended")
    await placement_index.leave(core, record)
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
