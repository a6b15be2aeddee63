"""Repairs reservations and groups where their own ends, their entries or their submitters were interrupted."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.jobs import placement_index
from fray_coordinator.placements import reservations
from fray_coordinator.protocol.placements.launching import given_up, is_given_up
from fray_coordinator.protocol.placements.owners import RESERVATION
from fray_coordinator.protocol.placements.reservations import jobs_of
from fray_coordinator.protocol.retention import retention_seconds
from fray_coordinator.reconcile.record_cache import RecordCache
from fray_coordinator.store.records import Stored
from fray_layouts.index_keys import PlacementKey
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import ReservationRecord
from fray_layouts.states import ReservationState


@dataclass(frozen=True, slots=True)
class JobInside:
    """A job that has not ended and is in the private pool of a reservation."""

    job: str
    reservation: str
    submitted_at: float


@dataclass(slots=True)
class ReservationRepair:
    """Runs this repair, and remembers what it has read."""

    core: Core
    _reservations: RecordCache[ReservationRecord] = field(init=False)

    def __post_init__(self) -> None:
        self._reservations = RecordCache(self.core, ReservationKeys.area, ReservationRecord, ReservationKeys.parse)

    async def run(self, inside: list[JobInside], problems: dict[str, str]) -> None:
        """End reservations that must end, add missing index entries, and stop jobs left in ended reservations.

        Args:
            inside: all jobs that are inside reservations, as read before.
            problems: receives the errors, by key.
        """
        await self._reservations.refresh(problems)
        known = self._reservations.known
        entries = await self._entries() if known or inside else {}
        by_reservation: dict[str, list[JobInside]] = {}
        for job in inside:
            by_reservation.setdefault(job.reservation, []).append(job)
        await map_noting_problems(sorted(known), lambda key: self._check(known[key], entries, by_reservation), problems)
        ids = {stored.record.id for stored in known.values()}
        await map_noting_problems(
            sorted(by_reservation.keys() - ids),
            lambda one: self._give_up(one, by_reservation[one], entries.get(one)),
            problems,
            ReservationKeys.key,
        )

    async def _entries(self) -> dict[str, PlacementKey]:
        rows = [PlacementKey.parse(row.key) for row in await self.core.store.list(PlacementKey.area)]
        return {entry.owner: entry for entry in rows if entry is not None and entry.kind == RESERVATION}

    async def _check(
        self,
        known: Stored[ReservationRecord],
        entries: Mapping[str, PlacementKey],
        inside: Mapping[str, list[JobInside]],
    ) -> None:
        record = known.record
        if record.state == ReservationState.ENDED:
            await self._clean(known, record.id in entries, inside.get(record.id, []))
        elif reason := await self._why_it_ends(record):
            await reservations.end(self.core, known, reason)
        elif record.id not in entries:
            await placement_index.enter(self.core, record)
            await placement_index.ring_bell(self.core)

    async def _why_it_ends(self, record: ReservationRecord) -> str:
        problems: dict[str, str] = {}
        done = await reservations.ended_jobs(self.core, jobs_of(record), problems)
        return await reservations.why_it_ends(self.core, record, done, problems)

    async def _clean(self, known: Stored[ReservationRecord], has_entry: bool, inside: list[JobInside]) -> None:
        """Stop the jobs left in an ended reservation; remove its record once it is old and no job is left."""
        record = known.record
        for job in inside:
            await reservations.stop_left(self.core, job.job, record)
        if has_entry:
            await placement_index.leave(self.core, record)
        ended_at = record.submitted_at if record.ended_at is None else record.ended_at
        if not inside and self.core.now() > ended_at + retention_seconds(self.core.settings):
            await self.core.store.delete(known.key, known.version)

    async def _give_up(self, reservation: str, inside: list[JobInside], entry: PlacementKey | None) -> None:
        """Give up a group whose record nobody will create: create the record as ended, then stop the group's jobs."""
        started = max(job.submitted_at for job in inside)
        if not is_given_up(started, self.core.now(), self.core.settings):
            return
        pool, submitted_at = (entry.pool, entry.time) if entry is not None else ("default", started)
        record = given_up(reservation, pool, submitted_at, self.core.now())
        written = await self.core.records.write(ReservationKeys.key(reservation), ReservationRecord, record, None)
        if written.wrote:
            await reservations.clear(self.core, record)
