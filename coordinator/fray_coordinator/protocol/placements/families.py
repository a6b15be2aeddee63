"""Families: who goes before an owner, because the owner waits for the end of a job that waits for somebody else.

**Invariant.** No owner and no job wait for each other for ever: if what an owner waits for waits for a job that the
owner keeps out, that job is let in.

**Unsafe sequence.**

1. Gang O is given two hosts. On one of them job W still runs, so O waits for its end.
2. W launches child C, and waits for it.
3. C comes later in order than O. It may use neither the room that is kept for O nor that of O's vote.

The same between an actor of a driver and the driver's next task, which is no child of the actor; between a parent and
its child gang, which is an owner itself; and when C has to wait for a second owner P, which waits for O.

**Why this cannot happen.** An agent that keeps a job out only for an owner's sake says so in its heartbeat. If anything
of the job's family runs on a member that has no room yet, of this owner or of one before it, the pass lets the family
go first: one write of the owner's record, with the next round, so all votes lapse. No member votes before the family's
turn is over. It is over once nothing runs there that ran there when it was let in. So a family that launches job after
job delays the owner only for a time; then the owner waits in peace for as long as it had waited before.

No record shows what a job waits for outside its family, such as an item in a queue. After `hold_limit` the job that was
kept out for the longest time is let in, whosever it is; the next one after twice that time. A job that ran before may
be what somebody waits for, and one of higher priority does not wait for others: they are let in at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from fray_coordinator.protocol.placements.owners import Owner
from fray_layouts.index_keys import PendingKey, family_digits
from fray_layouts.records import (
    MAX_FAMILIES_FIRST,
    AgentRecord,
    Ask,
    ClusterSettings,
    FamilyFirst,
    Holding,
    KeptRoom,
    Placement,
)

TURN_REPAIRS = 2
"""Repair intervals that a family's turn lasts at least: within one of them every agent has listed the index, and the
second is a margin."""


@dataclass(frozen=True, slots=True)
class KeptOut:
    """A job, or an owner without members, that does not start only because of the room that another owner keeps.

    Attributes:
        family: the digits of its family.
        who: the id of the job or the owner.
        since: the storage's time since which it is kept out.
        at_once: it is let in although nothing of its family runs there, and without a pause.
        entry: the job's entry in the index; None for an owner.
    """

    family: str
    who: str
    since: float
    at_once: bool = False
    entry: PendingKey | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """A family that is let in before an owner.

    Attributes:
        kept_out: the one that asked.
        for_job, agent: the job of that family for whose end the owner waits, and where it runs; "" if it is let in
            without one.
    """

    kept_out: KeptOut
    for_job: str = ""
    agent: str = ""


@dataclass(frozen=True, slots=True)
class FamilyChange:
    """The change of the families before an owner.

    Attributes:
        placement: the owner's next placement; its round is one higher if a family is let in.
        turns: the families that are let in now.
        over: the digits of those whose turn is over now.
    """

    placement: Placement
    turns: tuple[Turn, ...]
    over: tuple[str, ...]


def families_first(placement: Placement) -> frozenset[str]:
    """The digits of the families that go before the owner with this placement now."""
    return frozenset(each.family for each in placement.first if each.again is None)


def goes_before(entry: PendingKey, owner: Owner) -> bool:
    """Whether a job may use the room that is kept for an owner, until the owner's vote for that room is sent."""
    return _is_first(entry, owner.order, families_first(owner.placement))


def goes_before_kept(entry: PendingKey, owner: str, kept: KeptRoom) -> bool:
    """`goes_before`, by the heartbeat of the agent that keeps room for the owner."""
    return _is_first(entry, (-kept.priority, kept.submitted_at, owner), kept.first)


def _is_first(entry: PendingKey, order: tuple[int, float, str], first: Collection[str]) -> bool:
    return entry.order < order or (bool(first) and entry.family in first)


def is_let_in_at_once(entry: PendingKey, owner: Owner) -> bool:
    """Whether a job that an owner keeps out is let in although nothing of its family runs there, and without a pause.

    Whoever waits for a job that ran before may be anybody, and a job of higher priority waits for no other.
    """
    return entry.priority > owner.priority or entry.attempt > 1


def in_order(owners: Iterable[Owner]) -> list[Owner]:
    """The owners in the order in which they are given room: an owner whose family goes first comes just before."""
    usual = sorted(owners, key=lambda owner: owner.order)
    if not any(owner.placement.first for owner in usual):
        return usual
    relatives: dict[str, list[Owner]] = {}
    for owner in usual:
        relatives.setdefault(owner.family, []).append(owner)
    placed: dict[str, Owner] = {}
    met: set[str] = set()
    path = usual[::-1]
    while path:  # depth first: each comes after the relatives that go before it
        owner = path[-1]
        if owner.id in met:
            placed.setdefault(owner.id, owner)
            path.pop()
            continue
        met.add(owner.id)
        before = (other for family in families_first(owner.placement) for other in relatives.get(family, ()))
        path += sorted((other for other in before if other.id not in met), key=lambda other: other.order, reverse=True)
    return list(placed.values())


def asks_by_owner(agents: Iterable[AgentRecord]) -> dict[str, list[Ask]]:
    """By owner: what agents keep out for its sake only, by their heartbeats."""
    found: dict[str, list[Ask]] = {}
    for agent in agents:
        for ask in agent.asks:
            found.setdefault(ask.owner, []).append(ask)
    return found


def kept_out_by_asks(owner: Owner, asks: Iterable[Ask]) -> list[KeptOut]:
    """The jobs that are kept out for the owner's sake, by what agents ask."""
    entries = [(PendingKey.parse(ask.entry), ask.since) for ask in asks]
    return [
        KeptOut(entry.family, entry.job, since, is_let_in_at_once(entry, owner), entry)
        for entry, since in entries
        if entry is not None
    ]


def waits_without_members(owner: Owner) -> KeptOut:
    """An owner that gets no members because others have them."""
    return KeptOut(owner.family, owner.id, owner.waits_since)


def jobs_of_families(agents: Iterable[AgentRecord], before: float = float("inf")) -> dict[str, tuple[str, str]]:
    """By family: a job that runs on one of these agents since a time before the given one, and the agent."""
    found: dict[str, tuple[str, str]] = {}
    for agent in agents:
        for job, holding in agent.holdings.items():
            if holding.since is not None and holding.since <= before:
                found.setdefault(_family_of(job, holding), (job, agent.id))
    return found


def _family_of(job: str, holding: Holding) -> str:
    return family_digits(holding.family or job)


def change_of_families(
    placement: Placement,
    kept_out: Iterable[KeptOut],
    without_room: Collection[AgentRecord],
    now: float,
    settings: ClusterSettings,
    hold_limit: float,
) -> FamilyChange | None:
    """The families that go before an owner from now on; None if nothing changes.

    Args:
        placement: the owner's, with members.
        kept_out: what is kept out for the owner's sake only.
        without_room: the members, of this owner and of those before it, that have no room yet for what they are to
            have.
        hold_limit: that of the pool, in seconds.
    """
    begin = placement.place if placement.place is not None else now
    first, over = _after_turns(placement.first, without_room, now - begin, now, settings)
    wishes = _by_family(kept_out, {each.family for each in first if each.again is None})
    resting = {each.family for each in first if each.again is not None}
    there = jobs_of_families(without_room)
    turns = [
        Turn(wish, *there.get(family, ("", "")))
        for family, wish in wishes.items()
        if wish.at_once or (family in there and family not in resting)
    ]
    by_limit = not turns and bool(wishes) and now - begin >= hold_limit * 2**placement.limit_turns
    if by_limit:
        turns = [Turn(min(wishes.values(), key=lambda wish: (wish.since, wish.who)))]
    turns = turns[: MAX_FAMILIES_FIRST - len(first)]
    if not turns and not over:
        return None
    new = {turn.kept_out.family: FamilyFirst(family=turn.kept_out.family, at=now) for turn in turns}
    wanted = replace(
        placement,
        round=placement.round + bool(turns),
        first=[*(each for each in first if each.family not in new), *new.values()],
        limit_turns=placement.limit_turns + by_limit,
        place=begin,
    )
    return FamilyChange(wanted, tuple(turns), tuple(over))


def _by_family(kept_out: Iterable[KeptOut], without: Collection[str]) -> dict[str, KeptOut]:
    """Of each family that does not go first yet, what decides about it: what is let in at once, else the oldest."""
    found: dict[str, KeptOut] = {}
    for wish in sorted(kept_out, key=lambda wish: (not wish.at_once, wish.since, wish.who)):
        if wish.family not in without:
            found.setdefault(wish.family, wish)
    return found


def _after_turns(
    first: Iterable[FamilyFirst],
    without_room: Collection[AgentRecord],
    waited: float,
    now: float,
    settings: ClusterSettings,
) -> tuple[list[FamilyFirst], list[str]]:
    """The families that still go first or rest, and the digits of those whose turn is over now.

    A family rests until the owner has waited as long again as it has until now.
    """
    left: list[FamilyFirst] = []
    over: list[str] = []
    for each in first:
        is_due = each.again is None and now >= each.at + TURN_REPAIRS * settings.repair_interval
        if is_due and each.family not in jobs_of_families(without_room, each.at):
            left.append(replace(each, again=now + max(waited, settings.repair_interval)))
            over.append(each.family)
        elif each.again is None or now < each.again:
            left.append(each)
    return left, over
