"""The jobs that an agent keeps out only because it keeps their room for owners of placements.

Heartbeats list them once they have waited for a `repair_interval`, and the pass may let their families go first:
`fray_coordinator.protocol.placements.families`. An agent that has such a job holds something in any case, so it asks
without an extra heartbeat.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from fray_agents.agent.held import HeldPlacement
from fray_agents.agent.leases import Leases
from fray_coordinator.clock import RandomSource
from fray_coordinator.protocol.placements.families import families_first, is_let_in_at_once
from fray_coordinator.protocol.scheduling import HostKind
from fray_layouts.index_keys import PendingKey
from fray_layouts.records import MAX_ASKS, Ask

MOST_KEPT = 8 * MAX_ASKS
"""Families that are remembered for all owners. More would never be listed before others had their turn."""

FORGET_REPAIRS = 10.0
"""Repair intervals after which a family is forgotten whose jobs the agent has not seen in the index again. A large
index is walked through within a few of them."""


@dataclass(slots=True)
class _Kept:
    entry: PendingKey
    since: float
    seen: float


@dataclass(slots=True)
class Asks:
    """The asks of one agent: of each owner and family, one job that is kept out."""

    leases: Leases
    _kept: dict[tuple[str, str, bool], _Kept] = field(default_factory=dict)

    def note(self, keys: Iterable[str], host: HostKind, now: float, room: HeldPlacement | None = None) -> None:
        """Note which of these entries are kept out. room: the reservation in which the jobs would run."""
        if not self.leases.gathering_placements(room):
            return
        for entry in filter(None, map(PendingKey.parse, keys)):
            for held in self.leases.kept_out_by(entry, host, room):
                owner = held.owner
                key = owner.id, entry.family, is_let_in_at_once(entry, owner)
                known = self._kept.get(key)
                if known is not None:
                    known.entry, known.seen = entry, now
                elif len(self._kept) < MOST_KEPT:
                    self._kept[key] = _Kept(entry, now, now)

    def let_in(self) -> list[PendingKey]:
        """Forget what may be claimed by now, since its family goes first, and return it."""
        owners = {held.owner.id: families_first(held.owner.placement) for held in self.leases.placements.values()}
        found = {key: kept for key, kept in self._kept.items() if key[1] in owners.get(key[0], ())}
        self._kept = {key: kept for key, kept in self._kept.items() if key not in found}
        return [kept.entry for kept in found.values()]

    def due(self, now: float, repair_interval: float, rng: RandomSource) -> list[Ask]:
        """The asks for the next heartbeat; if there are too many, they are drawn by chance."""
        gathering = {held.owner.id for held in self.leases.placements.values() if held.gathers}
        self._kept = {
            key: kept
            for key, kept in self._kept.items()
            if key[0] in gathering and now - kept.seen < FORGET_REPAIRS * repair_interval
        }
        due = [
            Ask(entry=kept.entry.key(), owner=owner, since=kept.since)
            for (owner, _, _), kept in self._kept.items()
            if now - kept.since >= repair_interval and kept.entry.job not in self.leases.held
        ]
        while len(due) > MAX_ASKS:
            due.pop(int(rng.random() * len(due)))
        return due
