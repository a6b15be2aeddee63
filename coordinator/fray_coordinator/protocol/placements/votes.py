"""Votes: what an agent does about the record of an owner whose bundles it is assigned.

**Invariant.** If an owner was started, each of its live members has the owner's bundles, and nothing else in their
room, until that member has read that the owner moved on.

**Unsafe sequence.**

1. Agent A votes for a gang.
2. A hears nothing for a while, and claims a single job in the same room.
3. The pass has counted A's vote meanwhile, and starts the gang. On one of its hosts another job runs.

**Why this cannot happen.** A reserves the room before its heartbeat lists the vote. The vote names the round of the
record that A read, and only that record's next round, attempt or end frees the room: no time-out, no plan and no other
owner does. If A cannot wait for that, A writes the next round itself, by the same compare-and-swap as the pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto

from msgspec.structs import replace

from fray_coordinator.protocol.placements.families import families_first
from fray_coordinator.protocol.placements.owners import Owner
from fray_coordinator.protocol.transitions import Status
from fray_layouts.records import JobRecord, Placement, ReservationRecord
from fray_layouts.states import HoldingPhase, ReservationState


class OwnerPhase(StrEnum):
    """The phase of an owner's record."""

    FORMING = auto()
    STARTED = auto()
    """The gang runs, or the reservation is held."""
    OVER = auto()
    UNKNOWN = auto()
    """A state that this version does not know. Whatever is held for the owner stays."""


_OWNER_PHASES: dict[str, OwnerPhase] = {
    Status.UNADMITTED: OwnerPhase.OVER,
    Status.PENDING: OwnerPhase.OVER,
    Status.GATHERING: OwnerPhase.FORMING,
    Status.RUNNING: OwnerPhase.STARTED,
    Status.SUCCEEDED: OwnerPhase.OVER,
    Status.FAILED: OwnerPhase.OVER,
    Status.STOPPED: OwnerPhase.OVER,
    ReservationState.FORMING: OwnerPhase.FORMING,
    ReservationState.HELD: OwnerPhase.STARTED,
    ReservationState.ENDED: OwnerPhase.OVER,
}


def phase_of_owner(record: JobRecord | ReservationRecord | None) -> OwnerPhase:
    """The phase of the owner with this record; an owner without a record is over."""
    if record is None:
        return OwnerPhase.OVER
    state = record.status if isinstance(record, JobRecord) else record.state
    return _OWNER_PHASES.get(state, OwnerPhase.UNKNOWN)


class MemberAction(StrEnum):
    """What a member does about an owner's record."""

    NOTHING = auto()
    RELEASE = auto()
    """The record moved on: free what was kept or reserved for it, and stop listing it."""
    TAKE = auto()
    """It is assigned bundles that it does not know of: keep room for them, and none for an earlier round."""
    RESERVE = auto()
    """Vote, if there is room by now and no family goes first."""
    REFUSE = auto()
    """List that it refuses them."""
    WITHDRAW = auto()
    """Write the next round, then release: it has voted, and must leave."""
    START = auto()
    """Start the bundles' tasks, if it trusts its leases at that moment."""
    STOP = auto()
    """Stop the tasks: somebody asked for the job to end."""
    ABANDON = auto()
    """End the tasks: they are of an attempt that the record has left."""


@dataclass(frozen=True, slots=True)
class Vote:
    """The bundles that an agent has of an owner.

    Attributes:
        attempt, round: those of the record from which they were taken.
        bundles: their numbers, in order.
        phase: as its heartbeat lists it; "" while it waits for room and is not listed.
    """

    attempt: int
    round: int
    bundles: tuple[int, ...]
    phase: str = ""

    @property
    def at_work(self) -> bool:
        """Whether its tasks run, or their end is not written yet."""
        return self.phase in (HoldingPhase.RUNNING, HoldingPhase.ENDING)


@dataclass(frozen=True, slots=True)
class Voter:
    """The agent that decides. leaving: it takes no more work, and ends; unfit: something is wrong with its host."""

    agent: str
    leaving: bool = False
    unfit: bool = False


def member_action(
    voter: Voter, owner: Owner, owner_phase: OwnerPhase, vote: Vote | None, stopped: bool = False
) -> MemberAction:
    """What the agent does about an owner, by the owner's record as just read.

    Args:
        vote: what the agent has of the owner; None if it has nothing.
        stopped: the record has the flag that asks the job to end.
    """
    if owner_phase is OwnerPhase.UNKNOWN:
        return MemberAction.NOTHING
    assigned = owner.bundles_of(voter.agent) if owner_phase is not OwnerPhase.OVER else ()
    if vote is not None and vote.at_work:
        runs = (
            owner_phase is OwnerPhase.STARTED and vote.attempt == owner.attempt and set(vote.bundles) <= set(assigned)
        )
        return MemberAction.ABANDON if not runs else MemberAction.STOP if stopped else MemberAction.NOTHING
    of_now = vote is not None and (vote.attempt, vote.round, vote.bundles) == (
        owner.attempt,
        owner.placement.round,
        assigned,
    )
    binding = of_now and vote is not None and vote.phase == HoldingPhase.RESERVED
    if owner_phase is OwnerPhase.STARTED and binding:
        return MemberAction.START
    if owner_phase is OwnerPhase.FORMING and assigned and not voter.leaving:
        return _action_while_forming(voter, owner, vote if of_now else None)
    if owner_phase is OwnerPhase.FORMING and binding:
        return MemberAction.WITHDRAW
    return MemberAction.NOTHING if vote is None else MemberAction.RELEASE


def _action_while_forming(voter: Voter, owner: Owner, vote: Vote | None) -> MemberAction:
    """The action of an agent that stays and is assigned bundles of a forming owner. vote: its vote for this round."""
    if voter.unfit:
        refused = vote is not None and vote.phase == HoldingPhase.REFUSED
        voted = vote is not None and vote.phase == HoldingPhase.RESERVED
        return MemberAction.NOTHING if refused else MemberAction.WITHDRAW if voted else MemberAction.REFUSE
    if vote is None:
        return MemberAction.TAKE
    if vote.phase == "" and not families_first(owner.placement):
        return MemberAction.RESERVE
    return MemberAction.NOTHING


def withdrawn(placement: Placement) -> Placement:
    """The placement in its next round, without members. An agent writes it to withdraw its vote for a forming owner."""
    return replace(placement, round=placement.round + 1, members=[])
