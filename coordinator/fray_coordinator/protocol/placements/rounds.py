"""Rounds: what the pass writes about an owner that forms, and which owners the index has.

**Members and start.**

**Invariant.** An owner starts only while every one of its members keeps room for it, and no attempt starts while an
earlier one runs.

**Unsafe sequence.**

1. A pass counts the votes of members A and B for a gang.
2. A must leave and withdraws its vote, and another owner gets the room.
3. The pass starts the gang, without room on A.

Or: agent B has not read yet that attempt 1 has ended, and still runs it when attempt 2 starts.

**Why this cannot happen.** A vote names the round, and binds until its agent has read that the record moved on. An
agent that must withdraw its vote first writes the next round into the record. The start is written on condition of the
version that was read before the votes were. And it waits for every live agent whose heartbeat, read after the record,
lists an earlier attempt, but no longer than a limit, since a process that cannot be killed must not delay the gang for
ever.

The index of owners: which entries stay, and which gangs must have one.

**Invariant.** The pass can find every owner that has not ended: it has an entry, or the next repair creates one.

**Unsafe sequence.**

1. Submitter S creates the entry of a gang and is slow.
2. A repair finds the entry without a record, and deletes it.
3. S creates the record, and no pass ever sees that gang.

**Why this cannot happen.** An entry without a record stays for as long as its submitter may still be at work. The
repair creates missing entries for all records that it knows. And an entry has no attempt in its name, so no entry can
be that of an earlier attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from fray_coordinator.protocol.heartbeat import is_fenced
from fray_coordinator.protocol.placements.assignment import Assignment
from fray_coordinator.protocol.placements.families import families_first
from fray_coordinator.protocol.placements.hosts import HostView, has_room
from fray_coordinator.protocol.placements.launching import is_given_up
from fray_coordinator.protocol.placements.owners import (
    GANG,
    Owner,
    bundles_by_agent,
    entry_of_owner,
    owner_of_job,
    owner_of_reservation,
)
from fray_coordinator.protocol.placements.votes import OwnerPhase, phase_of_owner
from fray_coordinator.protocol.transitions import Event, Status, transition
from fray_layouts.index_keys import PlacementKey
from fray_layouts.records import (
    AgentRecord,
    ClusterSettings,
    Holding,
    JobRecord,
    Placement,
    PlacementMember,
    ReservationRecord,
)
from fray_layouts.spec import is_gang
from fray_layouts.states import AgentState, HoldingPhase, ReservationState

OwnerRecord = JobRecord | ReservationRecord
"""The record of an owner."""

SILENT_ROUND_REPAIRS = 2
"""Repair intervals after which a member that shows room and has not voted is left out, and after which an attempt waits
no longer for processes of the one before. Within one of them every agent has read its plan and its jobs; the second is
a margin."""


def owner_of(record: OwnerRecord) -> Owner:
    """The owner that this record describes."""
    return owner_of_job(record) if isinstance(record, JobRecord) else owner_of_reservation(record)


def vote_of(owner: Owner, agent: AgentRecord, phase: HoldingPhase = HoldingPhase.RESERVED) -> Holding | None:
    """The agent's vote for the owner's present round, or what it lists in another `phase`; None if there is none."""
    holding = agent.holdings.get(owner.id)
    if holding is None or holding.phase != phase or holding.attempt != owner.attempt:
        return None
    return holding if holding.round == owner.placement.round else None


def missing_votes(owner: Owner, agents: Mapping[str, AgentRecord], silent: Collection[str] = ()) -> list[str]:
    """The members whose votes are missing; [] if the owner may start. While a family goes first, no vote counts.

    Args:
        agents: by id, as they were read after the owner's record.
        silent: those whose heartbeat is overdue.
    """
    members, waits = owner.placement.members, bool(families_first(owner.placement))
    return [m.agent for m in members if waits or not _voted(owner, m, agents.get(m.agent), silent)]


def _voted(owner: Owner, member: PlacementMember, agent: AgentRecord | None, silent: Collection[str]) -> bool:
    if agent is None or agent.state != AgentState.LIVE or agent.id in silent:
        return False
    vote = vote_of(owner, agent)
    return vote is not None and sorted(vote.bundles) == sorted(member.bundles)


def members_without_room(
    owner: Owner, hosts: Mapping[tuple[str, str], HostView], agents: Mapping[str, AgentRecord]
) -> list[AgentRecord]:
    """The members that have no room yet for what they are to have, because something runs there.

    Args:
        hosts: by pool and agent.
        agents: by id.
    """
    found: list[AgentRecord] = []
    for member in owner.placement.members:
        agent, host = agents.get(member.agent), hosts.get((owner.pool, member.agent))
        if agent is None or host is None:
            continue
        holding = agent.holdings.get(owner.id)
        has = holding.bundles if holding is not None and (not owner.forming or vote_of(owner, agent)) else []
        missing = set(member.bundles).difference(has)
        if missing and not has_room(host, owner, agent, missing):
            found.append(agent)
    return found


def refusals(owner: Owner, agents: Mapping[str, AgentRecord]) -> list[str]:
    """The members that can never have what they were given."""
    members = (agents.get(member.agent) for member in owner.placement.members)
    return [agent.id for agent in members if agent is not None and vote_of(owner, agent, HoldingPhase.REFUSED)]


def without(owner: Owner, refused: Collection[str]) -> Placement:
    """The owner's placement with more agents refused for this attempt."""
    known = owner.placement.refused
    return replace(owner.placement, refused=[*known, *sorted(set(refused) - set(known))])


def next_round(placement: Placement, known: Placement, found: Assignment, now: float) -> Placement | None:
    """The placement with the members that were found; None if they are those in the record.

    Args:
        placement: the record's, with the refusals that were seen since.
        known: the record's.
    """
    members = list(found.members)
    if bundles_by_agent(members) == bundles_by_agent(known.members):
        return None
    until = placement.until
    if until is None and found.until is not None:
        until = max(found.until, now)
    moves = placement.moves + found.moved
    place = placement.place if placement.place is not None or not members else now
    return replace(placement, round=known.round + 1, members=members, until=until, moves=moves, place=place)


def placed(record: OwnerRecord, placement: Placement) -> OwnerRecord:
    """The record with another placement."""
    return replace(record, placement=placement)


def started(record: OwnerRecord, agents: Mapping[str, AgentRecord], now: float) -> OwnerRecord:
    """The record once every member has voted: a gang runs, a reservation is held. The ports are those in the votes."""
    owner = owner_of(record)
    members = [_with_ports(owner, member, agents[member.agent]) for member in owner.placement.members]
    placement = replace(owner.placement, members=members, first=[], place=None, limit_turns=0)
    if isinstance(record, JobRecord):
        return transition(record, Event.START, started_at=now, placement=placement)
    return replace(record, state=str(ReservationState.HELD), placement=placement)


def _with_ports(owner: Owner, member: PlacementMember, agent: AgentRecord) -> PlacementMember:
    vote = vote_of(owner, agent)
    return replace(member, ports=dict(vote.ports) if vote is not None else {})


def lingering(owner: Owner, agents: Mapping[str, AgentRecord]) -> list[str]:
    """The live agents that list an earlier attempt of the owner. Its processes may still run there."""
    return [
        agent.id
        for agent in agents.values()
        if not is_fenced(agent)
        and (holding := agent.holdings.get(owner.id)) is not None
        and holding.attempt < owner.attempt
    ]


def waits_for_lingering(job: JobRecord, now: float, settings: ClusterSettings) -> bool:
    """Whether the attempt still waits for processes of the one before."""
    if job.attempt == 1 or not job.history:
        return False
    patience = job.spec.grace + SILENT_ROUND_REPAIRS * settings.repair_interval
    return now < job.history[-1].ended_at + patience


def is_needed(entry: PlacementKey, record: OwnerRecord | None, now: float, settings: ClusterSettings) -> bool:
    """Whether an entry stays.

    Args:
        entry: as parsed; it was listed before `record` was read.
        record: that of the owner that the entry names; None if there is none.
        now: the storage's clock.
    """
    if record is None and entry.kind == GANG:
        return abs(now - entry.time) <= settings.quarantine
    if record is None:
        return not is_given_up(entry.time, now, settings)
    if isinstance(record, JobRecord) and not is_gang(record.spec):
        return False
    if isinstance(record, JobRecord) and record.status == Status.UNADMITTED:
        return True
    return phase_of_owner(record) is not OwnerPhase.OVER and entry_of_owner(owner_of(record)).key() == entry.key()


def entry_of_gang(job: JobRecord) -> PlacementKey | None:
    """The entry that a gang must have now; None for any other job, and for one that has ended or is not admitted."""
    if not is_gang(job.spec) or job.status == Status.UNADMITTED or phase_of_owner(job) is OwnerPhase.OVER:
        return None
    return entry_of_owner(owner_of(job))
