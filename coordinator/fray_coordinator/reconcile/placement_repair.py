"""Repairs placements: their index, gangs that have lost a member, and interrupted reservations and groups.

A running gang has lost a member if the member's agent is dead, or lives and has dropped its replicas. A member may drop
replicas that have ended, since the member that ends last writes the gang's end. If all have ended, and the record says
for long that the gang runs (a backup of it was restored, for example), the repair writes the end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.jobs import notifications
from fray_coordinator.jobs.commit import end_without, ended_replicas
from fray_coordinator.placements import reservations
from fray_coordinator.placements.tables import record_key
from fray_coordinator.protocol.failure_detection import is_unlisted
from fray_coordinator.protocol.heartbeat import is_fenced, with_bounded_interval
from fray_coordinator.protocol.placements.gang_end import is_whole, replicas_of, runs_gang
from fray_coordinator.protocol.placements.launching import given_up, is_given_up
from fray_coordinator.protocol.placements.owners import GANG, RESERVATION
from fray_coordinator.protocol.placements.reservations import jobs_of
from fray_coordinator.protocol.placements.rounds import OwnerRecord, entry_of_gang, is_needed
from fray_coordinator.protocol.retention import retention_seconds
from fray_coordinator.reconcile.job_table import OpenJob
from fray_coordinator.reconcile.reaper import MissedJobs, UnreadableHolders
from fray_coordinator.reconcile.record_cache import RecordCache
from fray_coordinator.store.records import Stored, record_of
from fray_layouts.index_keys import PlacementKey
from fray_layouts.object_keys import AgentKeys, JobKeys, ReservationKeys
from fray_layouts.records import AgentRecord, JobRecord, ReservationRecord
from fray_layouts.states import ReservationState


async def repair_entries(core: Core, gangs: Mapping[str, str], problems: dict[str, str]) -> None:
    """Add the missing entries of gangs, then delete the entries that nobody needs.

    Args:
        gangs: of all gangs that have not ended: by the key of the entry that each must have, the key of its record.
        problems: receives the errors, by key.
    """
    entries = {row.key for row in await core.store.list(PlacementKey.area)} - {PlacementKey.bell}

    async def enter(entry: str) -> None:
        job = record_of(await core.records.read(gangs[entry], JobRecord, one_of_many=True))
        if job is not None and (wanted := entry_of_gang(job)) is not None and wanted.key() not in entries:
            await notifications.enter(core, job)
            await notifications.ring_placements_bell(core)

    await map_noting_problems(sorted(gangs.keys() - entries), enter, problems, lambda entry: gangs[entry])
    await map_noting_problems(sorted(entries - gangs.keys()), lambda key: _remove_unneeded(core, key), problems)


async def _remove_unneeded(core: Core, key: str) -> None:
    entry, present = PlacementKey.parse(key), await core.store.get(key)
    if entry is None or present is None:
        return
    kind: type[OwnerRecord] = JobRecord if entry.kind == GANG else ReservationRecord
    record = record_of(await core.records.read(record_key(entry), kind, one_of_many=True))
    if not is_needed(entry, record, core.now(), core.settings):
        await core.store.delete(key, present.version)


@dataclass(slots=True)
class GangRepair:
    """Ends the attempts of running gangs that have lost a member.

    Attributes:
        holders: handles members whose own records cannot be read.
        missed: remembers members that did not list their replicas.
    """

    core: Core
    holders: UnreadableHolders
    missed: MissedJobs

    async def check_members(self, job_id: str, known: OpenJob, live: Mapping[str, Stored[AgentRecord]]) -> None:
        """Check the members of a running gang.

        Args:
            known: the gang as last read.
            live: by id, the agents that have not ended, from a moment ago.
        """
        doubtful = [agent for agent in known.shared.members if self._is_doubtful(job_id, known, live.get(agent))]
        job = await self.core.records.read(JobKeys.key(job_id), JobRecord, one_of_many=True) if doubtful else None
        if job is None or job.version != known.version:
            return
        ended = await ended_replicas(self.core, job.record)
        for agent in doubtful:
            holder = await self._member(agent)
            if holder is None or is_fenced(holder):
                await end_without(self.core, job, agent)
            elif is_whole(job.record, ended) or not ended.issuperset(replicas_of(job.record, agent)):
                await self._check_unlisted(job, known, with_bounded_interval(holder, self.core.settings))

    async def _member(self, agent: str) -> AgentRecord | None:
        try:
            return record_of(await self.core.records.read(AgentKeys.key(agent), AgentRecord, one_of_many=True))
        except BadRecord:
            await self.holders.check(agent)
            raise

    def _is_doubtful(self, job_id: str, known: OpenJob, member: Stored[AgentRecord] | None) -> bool:
        return member is None or is_unlisted(job_id, known.held_since, member.record, self.core.now())

    async def _check_unlisted(self, job: Stored[JobRecord], known: OpenJob, member: AgentRecord) -> None:
        """End the attempt once its member has not listed it for long enough."""
        if not is_unlisted(job.record.id, known.held_since, member, self.core.now()):
            return
        dropped = self.missed.is_dropped(job.record.id, known.version, member)
        if dropped and runs_gang(job.record, job.record.attempt, member.id):
            await end_without(self.core, job, member.id, "lives, but has dropped it")


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
            await notifications.enter(self.core, record)
            await notifications.ring_placements_bell(self.core)

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
            await notifications.leave(self.core, record)
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
