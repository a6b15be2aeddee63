"""The pending entries that an agent has listed, and which it tries next; the effort does not grow with the index.

Each try is drawn from the first K entries of one priority that fit, K being the slots of the pool: those jobs are all
about to run anyway, and as many claimers as that do not fight for one. Where an entry was stale, others have been: what
comes before it is tried last.
"""

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fray_coordinator.protocol.scheduling import HostKind, shortage
from fray_layouts.index_keys import PendingKey, Shape
from fray_layouts.records import Resources

STALE = math.inf
"""Time to try an entry again whose job is past that attempt: not while it is listed, but for the repair interval."""


@dataclass(slots=True)
class ShapeQueue:
    """Entries of one shape, in list order; those before `begin` are tried last."""

    shape: Shape
    keys: list[str]
    begin: int = 0

    @property
    def front(self) -> str:
        """The entry that is due first; where only passed ones are left, what sorts behind all entries."""
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
        """Others have come as far as `key`."""
        self.begin = bisect_left(self.keys, key)


@dataclass(slots=True)
class Candidates:
    """Entries that were listed and not tried, of those that fit `capacity` on such a host (as in `shortage`)."""

    host: HostKind
    capacity: Resources
    _queues: dict[str, ShapeQueue] = field(default_factory=dict)
    _not_before: dict[str, float] = field(default_factory=dict)
    _early: list[tuple[float, str]] = field(default_factory=list)

    @property
    def untried(self) -> bool:
        """Whether there are entries that have not been tried; what can never run here is none."""
        return any(queue.keys for queue in self._queues.values())

    def replace(self, keys: Sequence[str]) -> None:
        """Replace all entries by these keys, in list order; what is known to be stale or too early stays so."""
        self._not_before = {key: self._not_before[key] for key in keys if key in self._not_before}
        self._early = [(until, key) for key, until in self._not_before.items() if until < STALE]
        heapq.heapify(self._early)
        self._queues = {}
        self.extend(keys)

    def extend(self, keys: Sequence[str], free: Resources | None = None) -> bool:
        """Add these keys behind those that were listed before; whether any of them can ever run here.

        free: keep no more than fits this, for others of the other shapes, which come first, were passed.
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
        """Try none of these; what was put off comes when its time has come."""
        self._queues = {}

    def put_off(self, entry: PendingKey, until: float) -> None:
        """Do not try the entry before this storage time; `STALE`: not before everything is to be tried again."""
        key = entry.key()
        self._not_before[key] = until
        if until < STALE:
            heapq.heappush(self._early, (until, key))
        elif (queue := self._queue(key)) is not None:
            queue.pass_over(key)

    def forget_put_off(self) -> None:
        """Try what was put off again, from the next listing on."""
        self._not_before.clear()

    def next(
        self,
        free: Resources,
        now: float,
        width: int,
        draw: float,
        share: Callable[[str], Resources] | None = None,
    ) -> PendingKey | None:
        """The entry to try now; None if none fits `free`. It is not given again unless it is put off or listed.

        Args:
            now: the storage's time.
            width: K, a hint.
            draw: a random number in [0, 1).
            share: what an entry may have of what is free, by its key; None: all.
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
        """Where entries go whose names end like this; None if it is no entry."""
        shape = PendingKey.shape_text(key)
        if shape not in self._queues:
            entry = PendingKey.parse(key)
            if entry is None:
                return None
            self._queues[shape] = ShapeQueue(entry.shape, [])
        return self._queues[shape]

    def _restore_due(self, now: float) -> None:
        """Entries whose time has come are candidates again."""
        while self._early and self._early[0][0] <= now:
            until, key = heapq.heappop(self._early)
            if self._not_before.get(key) == until and (queue := self._queue(key)) is not None:
                del self._not_before[key]
                insort(queue.keys, key)
