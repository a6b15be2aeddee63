"""How agents are shown to people: what they keep room for, where they are, and which contradict each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fray_layouts.states import HoldingPhase
from fray_layouts.units import format_duration

if TYPE_CHECKING:
    from fray_coordinator.protocol.placements.owners import Owner
    from fray_layouts.records import AgentRecord

_NOT_RUNNING_PHASES = frozenset({HoldingPhase.RESERVED, HoldingPhase.REFUSED})


@dataclass(frozen=True, slots=True)
class Hold:
    """Room that an agent keeps for an owner which is still gathering its members.

    Attributes:
        owner: id of the job or of the reservation.
        bundles: how many bundles the owner gets on this agent.
        reserved: whether the bundles have their room; otherwise they wait until it is free.
        until: when all members will have room at the latest, by the storage's clock; None if that is unknown.
    """

    owner: str
    bundles: int
    reserved: bool
    until: float | None

    def text(self, now: float) -> str:
        """This hold in a few words."""
        if self.reserved:
            return f"{self.owner} (reserved)"
        left = "" if self.until is None or self.until <= now else f", for at most {format_duration(self.until - now)}"
        return f"{self.owner} (until there is room{left})"

    def json(self) -> dict[str, Any]:
        """This hold for scripts."""
        return {"owner": self.owner, "bundles": self.bundles, "reserved": self.reserved, "until": self.until}


def holds_of(agent: AgentRecord, owners: Iterable[Owner]) -> list[Hold]:
    """What the agent keeps room for. owners: all owners that have not ended, in order."""
    from fray_coordinator.protocol.placements.rounds import vote_of

    holds: list[Hold] = []
    for owner in owners:
        bundles = owner.bundles_of(agent.id)
        if owner.forming and bundles:
            holds.append(Hold(owner.id, len(bundles), vote_of(owner, agent) is not None, owner.placement.until))
    return holds


def jobs_at_work(agent: AgentRecord, owners: Iterable[Owner]) -> int:
    """How many jobs the agent runs or is about to run. owners: all owners that have not ended."""
    known = {owner.id: owner for owner in owners}
    return sum(_is_running(agent, held, known.get(held)) for held in agent.holdings)


def _is_running(agent: AgentRecord, held: str, owner: Owner | None) -> bool:
    """Whether a holding is a job that runs there. Until the next beat, a gang that has started is still a vote."""
    from fray_coordinator.protocol.placements.owners import RESERVATION
    from fray_coordinator.protocol.placements.rounds import vote_of

    if owner is not None and owner.kind == RESERVATION:
        return False
    if agent.holdings[held].phase not in _NOT_RUNNING_PHASES:
        return True
    return owner is not None and not owner.forming and vote_of(owner, agent) is not None


def place_text(agent: AgentRecord) -> str:
    """Where the agent's host is, for people; "" if that is unknown."""
    slice_ = agent.slice
    parts = [
        f"worker {slice_.index} of {slice_.hosts} in slice {slice_.id}" if slice_ and slice_.hosts > 1 else "",
        f"zone {agent.zone}" if agent.zone else "",
        f"region {agent.region}" if agent.region else "",
        *(f"{name}={value}" for name, value in sorted(agent.labels.items())),
    ]
    return ", ".join(filter(None, parts))


def conflicts(live: Sequence[AgentRecord]) -> dict[str, str]:
    """By agent, a message if another agent says that it is the same host of the same slice."""
    claims: dict[tuple[str, int], list[str]] = {}
    for agent in live:
        if agent.slice is not None:
            claims.setdefault((agent.slice.id, agent.slice.index), []).append(agent.id)
    told: dict[str, str] = {}
    for (name, index), agents in claims.items():
        for agent_id in agents if len(agents) > 1 else ():
            others = ", ".join(other for other in agents if other != agent_id)
            told[agent_id] = f"worker {index} of slice {name} is also {others}; give each host its own --worker"
    return told
