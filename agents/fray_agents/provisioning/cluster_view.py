"""The cluster as the scaler reads it for a run: agents, placements, waiting work, and the records of machines."""

from dataclasses import dataclass, field
from typing import Any

from fray_coordinator.concurrency import decide_each, map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.placements.reservations import ended_jobs
from fray_coordinator.placements.tables import OwnerTable
from fray_coordinator.protocol.failure_detection import needs_reaping
from fray_coordinator.protocol.heartbeat import DEATH_INTERVALS, with_bounded_interval
from fray_coordinator.protocol.placements.owners import Owner
from fray_coordinator.protocol.placements.reservations import jobs_of, lacking_units
from fray_coordinator.protocol.scaling.view import WaitingJob
from fray_coordinator.protocol.scheduling import shape_of
from fray_coordinator.protocol.transitions import Status
from fray_coordinator.store.records import R, Stored, record_of
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import AgentKeys, JobKeys, MachineKeys
from fray_layouts.records import AgentRecord, JobRecord, MachineRecord, ReservationRecord
from fray_layouts.spec import is_gang
from fray_layouts.states import AgentState, MachineState

MAX_WAITING_JOBS = 1000
"""Most waiting jobs of a pool that a run counts, from the head of the queue: one page of a listing."""

FORGOTTEN_SECONDS = 3600.0
"""Seconds after its last write from which an agent's record is not read any more: no machine waits for it."""


AFTERMATH_SECONDS = 600.0
"""Seconds for which a run still covers the place of a deleted machine: a repeated call may create it again."""


@dataclass(slots=True)
class ClusterView:
    """Reads everything that has changed since the last run.

    Attributes:
        problems: the records that could not be read in this run, by key.
    """

    core: Core
    problems: dict[str, str] = field(default_factory=dict)
    _owners: OwnerTable = field(init=False)
    _refreshed_at: float = 0.0
    _agents: dict[str, Stored[AgentRecord]] = field(default_factory=dict)
    _agents_of: dict[str, list[Stored[AgentRecord]]] = field(default_factory=dict)
    _owners_of: dict[str, list[Owner]] = field(default_factory=dict)
    _lacking_of: dict[str, list[Owner]] = field(default_factory=dict)
    _machines_of: dict[str, dict[str, Stored[MachineRecord]]] = field(default_factory=dict)
    _jobs_of: dict[str, dict[str, WaitingJob | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._owners = OwnerTable(self.core)

    async def refresh(self) -> None:
        """Read the machines, the agents, and the owners of placements."""
        known = {key: machine for found in self._machines_of.values() for key, machine in found.items()}
        found = await self._read(MachineKeys.area, MachineRecord, known)
        self._machines_of = {}
        for key, machine in found.items():
            pool, _ = MachineKeys.parse(key) or ("", "")
            self._machines_of.setdefault(pool, {})[key] = machine
        self.problems = {}
        self._refreshed_at = self.core.now()
        oldest = self._refreshed_at - FORGOTTEN_SECONDS
        self._agents = await self._read(AgentKeys.area, AgentRecord, self._agents, oldest)
        await self._owners.refresh()
        self.problems |= self._owners.problems
        self._agents_of, self._owners_of, self._lacking_of = {}, {}, {}
        for stored in self._agents.values():
            if not stored.record.driver:
                self._agents_of.setdefault(stored.record.pool, []).append(stored)
        for owner in self._owners.owners().values():
            self._owners_of.setdefault(owner.pool, []).append(owner)

        async def add_lacking(held: Stored[ReservationRecord]) -> None:
            self._lacking_of.setdefault(held.record.pool, []).extend(await self._lacking(held.record))

        await map_noting_problems(self._owners.held(), add_lacking, self.problems, lambda held: held.key)

    def agents(self, pool: str) -> dict[str, AgentRecord]:
        """The agents of a pool by id, including those that have ended."""
        return {stored.record.id: stored.record for stored in self._agents_of.get(pool, ())}

    def silent(self, pool: str) -> set[str]:
        """The ids of a pool's agents whose records say LIVE, but whose last heartbeat is too old."""
        live = [agent for agent in self._agents_of.get(pool, ()) if agent.record.state == AgentState.LIVE]
        judged = decide_each(live, lambda agent: (agent.record.id, self._is_overdue(agent)), self.problems, _key)
        return {agent for agent, is_overdue in judged if is_overdue}

    def owners(self, pool: str) -> list[Owner]:
        """The owners of placements in a pool that have not ended."""
        return self._owners_of.get(pool, [])

    def lacking(self, pool: str) -> list[Owner]:
        """The parts of a pool's held reservations that have lost their hosts and need new ones."""
        return self._lacking_of.get(pool, [])

    async def _lacking(self, reservation: ReservationRecord) -> list[Owner]:
        agents, silent = self.agents(reservation.pool), self.silent(reservation.pool)
        live = {a.id for a in agents.values() if a.state == AgentState.LIVE and not a.drain and a.id not in silent}
        same = reservation.same
        places = {agent.id: getattr(agent, same) for agent in agents.values()} if same else {}
        if not lacking_units(reservation, live, (), places):
            return []
        done = await ended_jobs(self.core, jobs_of(reservation), self.problems)
        return lacking_units(reservation, live, done, places)

    def known_machines(self) -> dict[str, list[MachineRecord]]:
        """By pool, the machines that are not gone, or only recently, as they were when the cluster was read."""
        since = self._refreshed_at - AFTERMATH_SECONDS
        return {
            pool: [s.record for s in found.values() if s.record.ended_at is None or s.record.ended_at > since]
            for pool, found in self._machines_of.items()
        }

    async def machines(self, pool: str) -> dict[str, Stored[MachineRecord]]:
        """The records of a pool's machines by name, including gone ones, as they are now."""
        known = self._machines_of.get(pool, {})
        found = self._machines_of[pool] = await self._read(MachineKeys.folder(pool), MachineRecord, known)
        return {stored.record.name: stored for stored in found.values()}

    def unread_machines(self, pool: str) -> dict[str, str]:
        """The machines of the pool whose records could not be read in this run, by name, with the problem."""
        named = {MachineKeys.parse(key): f"{key}: {problem}" for key, problem in self.problems.items()}
        return {place[1]: problem for place, problem in named.items() if place is not None and place[0] == pool}

    async def waiting_jobs(self, pool: str) -> list[WaitingJob]:
        """The jobs that wait in a pool, and those of silent agents, which will wait once the pass has reaped these."""
        rows = await self.core.store.list(PendingKey.prefix(pool), None, MAX_WAITING_JOBS)
        entries = {row.key: entry for row in rows if (entry := PendingKey.parse(row.key)) is not None}
        known = self._jobs_of.get(pool, {})
        jobs = self._jobs_of[pool] = {key: known[key] for key in entries if key in known}
        left: dict[str, WaitingJob] = {}

        async def read(key: str) -> None:
            found = record_of(await self.core.records.read(JobKeys.key(entries[key].job), JobRecord, one_of_many=True))
            if found is None:  # it is about to be written
                return
            same = found.attempt == entries[key].attempt
            if not same or found.status != Status.RUNNING:
                jobs[key] = _waiting(found) if same and found.status == Status.PENDING else None
            elif self._has_lost_holder(found):  # otherwise its holder's next heartbeat leads to the entry's deletion
                left[key] = _waiting(found)

        await map_noting_problems([key for key in entries if key not in jobs], read, self.problems)
        waiting = [job for key in entries if (job := jobs.get(key) or left.get(key)) is not None]
        listed = {job.id for job in waiting}
        return waiting + [job for job in await self._stranded(pool) if job.id not in listed]

    async def _stranded(self, pool: str) -> list[WaitingJob]:
        """The jobs held by agents that are silent, or dead and not reaped."""
        silent = self.silent(pool)
        agents = [a for a in self.agents(pool).values() if a.id in silent or needs_reaping(a)]
        held = sorted({job for agent in agents for job in agent.holdings})
        found = await map_noting_problems(
            held, lambda job: self.core.records.read(JobKeys.key(job), JobRecord, one_of_many=True), self.problems
        )
        jobs = [
            job for job in found if job is not None and job.record.ended_at is None and not is_gang(job.record.spec)
        ]
        return decide_each(jobs, lambda job: _waiting(job.record), self.problems, _key)

    def _has_lost_holder(self, job: JobRecord) -> bool:
        """Whether the holder of a running job was gone when the agents were read."""
        if job.lease is None or job.lease.since > self._refreshed_at:
            return False
        holder = self._agents.get(AgentKeys.key(job.lease.agent))
        return holder is None or holder.record.state != AgentState.LIVE or self._is_overdue(holder)

    def _is_overdue(self, agent: Stored[AgentRecord]) -> bool:
        """Whether the heartbeat was too old when the agents were read; later delays of a provider do not count."""
        interval = with_bounded_interval(agent.record, self.core.settings).interval
        return self._refreshed_at - agent.updated > DEATH_INTERVALS * interval

    async def _read(
        self, prefix: str, kind: type[R], known: dict[str, Stored[R]], oldest: float = 0.0
    ) -> dict[str, Stored[R]]:
        """The records under a prefix, by key; only changed ones are read again, and none written before `oldest`."""
        parse = AgentKeys.parse if kind is AgentRecord else MachineKeys.parse
        rows = [row for row in await self.core.store.list(prefix, versions=True) if parse(row.key) is not None]
        rows = [row for row in rows if row.updated is None or row.updated >= oldest]
        found = {row.key: known[row.key] for row in rows if row.key in known and known[row.key].version == row.version}

        async def read(key: str) -> None:
            if (stored := await self.core.records.read(key, kind, one_of_many=True)) is not None:
                found[key] = stored

        await map_noting_problems([row.key for row in rows if row.key not in found], read, self.problems)
        return found


def present(machines: dict[str, Stored[MachineRecord]]) -> dict[str, MachineRecord]:
    """The machines that are not gone."""
    return {name: stored.record for name, stored in machines.items() if stored.record.state != MachineState.GONE}


def _key(stored: Stored[Any]) -> str:
    return stored.key


def _waiting(job: JobRecord) -> WaitingJob:
    spec = job.spec
    return WaitingJob(job.id, spec.priority, job.submitted_at, shape_of(spec), spec.resources)
