"""The observer of gangs: their votes, starts and ends, read from storage and hosts at once."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from fray_agents.agent.held import HeldPlacement
from fray_agents.agent.leases import Leases
from fray_coordinator.protocol.placements.owners import Owner
from fray_coordinator.protocol.transitions import Status
from fray_coordinator.store.interface import Object
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import AgentKeys, JobKeys, ReservationKeys
from fray_layouts.records import AgentRecord, JobRecord, Placement, ReplicaExit, ReservationRecord
from fray_layouts.spec import is_gang
from fray_layouts.states import HoldingPhase, ReservationState
from fray_layouts.work_keys import WorkKeys
from tests.simulation import gang_invariants, reservation_invariants
from tests.simulation.invariants import Broken
from tests.simulation.loop import Participant
from tests.simulation.watching import Change, sound

if TYPE_CHECKING:
    from tests.simulation.gangs import GangWorld

Vote = tuple[str, int, int, str, tuple[int, ...]]
"""(owner, attempt, round, agent, bundles)"""


class GangWatch:
    """What was ever true of gangs.

    Attributes:
        votes: all that a beat has listed.
        started: the members of each attempt that was started, by (job, attempt).
        exits: when each replica's end was written, by (job, attempt) and replica.
        complete: when the last of all good ends of an attempt was written.
        windows: the first `until` of each attempt.
        reservations: their records, by id; held: those that were ever held.
        older: agents that know nothing of gangs.
    """

    def __init__(self, world: GangWorld) -> None:
        self.world = world
        self.votes: set[Vote] = set()
        self.started: dict[tuple[str, int], Placement] = {}
        self.exits: dict[tuple[str, int], dict[int, bool]] = {}
        self.complete: dict[tuple[str, int], float] = {}
        self.windows: dict[tuple[str, int], float] = {}
        self.reservations: dict[str, ReservationRecord] = {}
        self.held: set[str] = set()
        self.older: set[str] = set()
        self._fills: dict[tuple[int, str, int], tuple[float, float]] = {}
        self._agents: dict[str, AgentRecord] = {}
        self._jobs: dict[str, JobRecord] = {}

    @property
    def watching(self) -> Any:
        return self.world.watching

    def on_write(self, key: str, after: Object | None, sender: Participant) -> None:
        """Record one change after the world has, and check everything that it could break."""
        if WorkKeys.parse_exit(key) is not None and after is not None:
            self._exit(key, after)
        elif (job := JobKeys.parse(key)) and key.startswith(JobKeys.area):
            self._job(job, sound(JobRecord, after), sender)
        elif (reservation := ReservationKeys.parse(key)) and key.startswith(ReservationKeys.area):
            self._reservation(reservation, sound(ReservationRecord, after), sender)
        elif (agent := AgentKeys.parse(key)) and key.startswith(AgentKeys.area):
            self._agent(agent, sound(AgentRecord, after), sender)

    def check_room(self, agent: str, taken: Counter[str], about: str) -> None:
        """Raises: the replicas need more than the agent's host has."""
        host = self.world.process_host(agent)
        has = Counter(cpu=host.capacity.cpu, chips=host.capacity.device_count)
        if over := taken - has:
            message = f"{agent} has {dict(has)}, and {dict(taken)} is taken: {dict(over)} too much"
            raise Broken("no agent has more than its host", message, agent, about)

    def claims(self, leases: Leases, entry: PendingKey, room: HeldPlacement | None) -> None:
        """An agent tries to claim a single job, perhaps in room that is kept for owners that it does not go before."""
        free = leases.unreserved(room, entry)
        waits = [held for held in leases.waiting_placements(room) if not may_go_first(entry, held.owner)]
        self._fills.pop((id(leases), entry.job, entry.attempt), None)
        if entry.shape.cpu > free.cpu or entry.shape.device_count > free.device_count:
            until = min((held.owner.placement.until or 0.0 for held in waits), default=math.inf)
            self._fills[id(leases), entry.job, entry.attempt] = self.world.storage.clock.wall(), until

    def claimed(self, job: JobRecord) -> None:
        """Raises: a single job was claimed in the room of an earlier owner, and may not end in time."""
        leases = self.world.agents[job.lease.agent].member.leases if job.lease else None
        tried, until = self._fills.pop((id(leases), job.id, job.attempt), (0.0, math.inf))
        longest = math.inf if job.spec.timeout is None else job.spec.timeout + job.spec.grace
        if tried + longest > until + _CLOCKS_DIFFER:
            message = f"{job.id} takes up to {longest:.0f} s from {tried:.0f} in room that is kept from {until:.0f}"
            raise Broken(
                "room that becomes free goes to a waiting owner", message, job.id, job.lease.agent if job.lease else ""
            )

    def note_votes(self, key: str, after: Object | None) -> None:
        """Record the votes in an agent's record, and check nothing."""
        record = sound(AgentRecord, after) if AgentKeys.parse(key) and key.startswith(AgentKeys.area) else None
        if record is not None:
            self._note_votes(record)

    # --- inside

    def _note_votes(self, record: AgentRecord) -> None:
        for job, held in record.holdings.items():
            if held.phase == HoldingPhase.RESERVED:
                self.votes.add((job, held.attempt, held.round, record.id, tuple(held.bundles)))

    def _job(self, job: str, record: JobRecord | None, sender: Participant) -> None:
        before = self._jobs.pop(job, None)
        if record is not None:
            self._jobs[job] = record
        kind = record or before
        if kind is None or job in self.world.strangers.harmed:
            return
        change = Change(job, before, record, {}, {}, sender)
        for check in reservation_invariants.OF_JOBS_INSIDE:
            check(self, change)
        if not is_gang(kind.spec):
            if before is not None and record is not None and record.status == Status.RUNNING != before.status:
                self.claimed(record)
            return
        if before is not None and record is not None and record.created_op != before.created_op:
            self._born_again(job)
        if record is not None and record.status == Status.RUNNING and record.placement is not None:
            self.started.setdefault((job, record.attempt), record.placement)
        for check in gang_invariants.OF_GANG_RECORDS:
            check(self, change)

    def _agent(self, agent: str, record: AgentRecord | None, sender: Participant) -> None:
        before = self._agents.pop(agent, None)
        if record is None:
            return
        self._agents[agent] = record
        self._note_votes(record)
        if agent in self.world.strangers.harmed:
            return
        for check in gang_invariants.OF_MEMBERS:
            check(self, Change(agent, before, record, {}, {}, sender))

    def _reservation(self, owner: str, record: ReservationRecord | None, sender: Participant) -> None:
        self.world.note(sender.name, f"reservation {owner}", reservation_invariants.told_reservation(record))
        before = self.reservations.pop(owner, None)
        if record is not None:
            self.reservations[owner] = record
        if record is not None and record.state == ReservationState.HELD:
            self.held.add(owner)
        for check in reservation_invariants.OF_RESERVATIONS:
            check(self, Change(owner, before, record, {}, {}, sender))

    def _exit(self, key: str, after: Object) -> None:
        found, replica = WorkKeys.parse(key), WorkKeys.parse_exit(key)
        assert found is not None
        assert replica is not None
        try:
            end = msgspec.json.decode(after.data, type=ReplicaExit)
        except ValueError:
            return
        ends = self.exits.setdefault(found, {})
        ends.setdefault(replica, gang_invariants.is_good(end))
        job = self.watching.jobs.get(found[0])
        if job is not None and len(ends) == job.spec.replicas and all(ends.values()):
            self.complete.setdefault(found, self.world.loop.now)

    def _born_again(self, job: str) -> None:
        for known in (self.started, self.exits, self.complete, self.windows):
            for which in [which for which in known if which[0] == job]:
                del known[which]
        self.votes = {vote for vote in self.votes if vote[0] != job}


def may_go_first(entry: PendingKey, owner: Owner) -> bool:
    """Whether a single job may use the room that is kept for an owner: it is earlier in order, or of such a family."""
    lets_in = {each.family for each in owner.placement.first if each.again is None}
    return (-entry.priority, entry.time, entry.job) < owner.order or entry.family in lets_in


_CLOCKS_DIFFER = 2.0
"""Seconds by which a participant's idea of the storage's time may be wrong."""
