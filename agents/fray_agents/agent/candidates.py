"""The pending entries that an agent has listed, which of them it tries next, and for which of them it asks.

The cost of a choice does not grow with the index. Each try is drawn from the first K entries of one priority that fit.
K is the number of slots in the pool: those jobs are all about to run anyway, and K claimers do not compete for one
entry. A stale entry shows that other agents have come that far, so the entries before it are tried last.

An agent asks for the jobs that it keeps out only because it keeps their room for owners of placements. Heartbeats list
them once they have waited for a `repair_interval`, and the pass may let their families go first:
`fray_coordinator.protocol.placements.families`. An agent that has such a job holds something in any case, so it asks
without an extra heartbeat.
"""

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fray_agents.agent.held import HeldPlacement
from fray_agents.agent.leases import Leases
from fray_coordinator.clock import RandomSource
from fray_coordinator.protocol.placements.families import families_first, is_let_in_at_once
from fray_coordinator.protocol.scheduling import HostKind, shortage
from fray_layouts.index_keys import PendingKey, Shape
from fray_layouts.records import MAX_ASKS, Ask, Resources

STALE = math.inf
"""Retry time of an entry whose job is past that attempt: it is not tried while it is listed, except at repairs."""


@dataclass(slots=True)
class ShapeQueue:
    """Entries of one shape, in list order; those before `begin` are tried last."""

    shape: Shape
    keys: list[str]
    begin: int = 0

    @property
    def front(self) -> str:
        """The entry that is due first; if only passed entries are left, a text that sorts after all entries."""
        return self.keys[self.begin] if self.begin < len(self.keys) else f"~{self.keys[0]}"

    @property
    def first(self) -> str:
        """The entry that `draw` takes first."""
        return self.keys[self.begin] if self.begin < len(self.keys) else self.keys[0]

    def draw(self, width: int, random: float) -> str:
        """Take one of the first `width` entries of the front's priority."""
        if self.begin >= len(self.keys):
            self.begin = 0
        end = bisect_left(self.keys, PendingKey.behind_priority_of(self.front), self.begin)
        return self.keys.pop(self.begin + int(random * min(width, end - self.begin)))

    def pass_over(self, key: str) -> None:
        """Try the entries before `key` last: other agents have already come that far."""
        self.begin = bisect_left(self.keys, key)


@dataclass(slots=True)
class Candidates:
    """Entries that were listed and not tried, and that fit `capacity` on such a host (as in `shortage`)."""

    host: HostKind
    capacity: Resources
    _queues: dict[str, ShapeQueue] = field(default_factory=dict)
    _not_before: dict[str, float] = field(default_factory=dict)
    _early: list[tuple[float, str]] = field(default_factory=list)

    @property
    def untried(self) -> bool:
        """Whether there are entries that have not been tried; entries that can never run here do not count."""
        return any(queue.keys for queue in self._queues.values())

    def replace(self, keys: Sequence[str]) -> None:
        """Replace all entries by these keys, in list order; keys that were put off stay put off."""
        self._not_before = {key: self._not_before[key] for key in keys if key in self._not_before}
        self._early = [(until, key) for key, until in self._not_before.items() if until < STALE]
        heapq.heapify(self._early)
        self._queues = {}
        self.extend(keys)

    def extend(self, keys: Sequence[str], free: Resources | None = None) -> bool:
        """Add these keys after those that were listed before; whether any of them can ever run here.

        free: keep only entries that fit this, because earlier entries of other shapes were skipped.
        """
        fits = False
        queues: dict[str, ShapeQueue | None] = {}
        for key in keys:
            shape = PendingKey.shape_text(key)
            if shape not in queues and (entry := PendingKey.parse(key)) is not None:
                fits_ever = not shortage(entry.shape, self.capacity, self.host)
                fits |= fits_ever
                kept = fits_ever if free is None else not shortage(entry.shape, free, self.host)
                queues[shape] = self._queues.setdefault(shape, ShapeQueue(entry.shape, [])) if kept else None
            queue = queues.get(shape)
            if queue is not None and key not in self._not_before:
                queue.keys.append(key)
        return fits

    def clear(self) -> None:
        """Drop all candidates; entries that were put off return when they are due."""
        self._queues = {}

    def put_off(self, entry: PendingKey, until: float) -> None:
        """Do not try the entry before this storage time; `STALE`: not until `forget_put_off`."""
        key = entry.key()
        self._not_before[key] = until
        if until < STALE:
            heapq.heappush(self._early, (until, key))
        elif (queue := self._queue(key)) is not None:
            queue.pass_over(key)

    def forget_put_off(self) -> None:
        """Try the entries that were put off again, from the next listing on."""
        self._not_before.clear()

    def next(
        self,
        free: Resources,
        now: float,
        width: int,
        draw: float,
        share: Callable[[str], Resources] | None = None,
    ) -> PendingKey | None:
        """The entry to try now; None if none fits `free`. It is returned again only if it is put off or listed again.

        Args:
            now: the storage's time.
            width: K of the module's docstring, an estimate.
            draw: a random number in [0, 1).
            share: the part of the free resources that an entry may use, by its key; None: all of them.
        """
        self._restore_due(now)
        while queues := self._fitting(free, share):
            first = min(queues, key=lambda queue: queue.front)
            if (entry := PendingKey.parse(first.draw(max(width, 1), draw))) is not None:
                return entry
        return None

    def fits(self, free: Resources) -> bool:
        return bool(self._fitting(free))

    def _fitting(self, free: Resources, share: Callable[[str], Resources] | None = None) -> list[ShapeQueue]:
        fitting = [
            queue for queue in self._queues.values() if queue.keys and not shortage(queue.shape, free, self.host)
        ]
        if share is None:
            return fitting
        return [queue for queue in fitting if not shortage(queue.shape, share(queue.first), self.host)]

    def _queue(self, key: str) -> ShapeQueue | None:
        """The queue of the key's shape; None if the key is not that of an entry."""
        shape = PendingKey.shape_text(key)
        if shape not in self._queues:
            entry = PendingKey.parse(key)
            if entry is None:
                return None
            self._queues[shape] = ShapeQueue(entry.shape, [])
        return self._queues[shape]

    def _restore_due(self, now: float) -> None:
        """Make entries candidates again whose time has come."""
        while self._early and self._early[0][0] <= now:
            until, key = heapq.heappop(self._early)
            if self._not_before.get(key) == until and (queue := self._queue(key)) is not None:
                del self._not_before[key]
                insort(queue.keys, key)


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
