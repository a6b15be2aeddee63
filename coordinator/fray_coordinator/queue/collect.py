"""Clearing away what is finished: large items, the segment, then, once that is absent, its lease."""

from __future__ import annotations

from dataclasses import dataclass

from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.protocol.queue_segments import is_collectable, is_overdue
from fray_coordinator.queue.claims import discard_lease, read_segment
from fray_coordinator.queue.held import Held
from fray_coordinator.queue.home import Home
from fray_coordinator.records import Stored
from fray_coordinator.store.api import Gone
from fray_layouts.queue_names import Segment
from fray_layouts.queues import QueueLease

AT_ONCE = 100
"""Segments cleared away in one turn."""
SWEEP_EVERY = 600.0
"""Seconds between looks for large items that no segment came for."""
PAGE = 1000


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished segment: what is to be deleted, as it was last seen."""

    segment: str
    version: str
    large: list[int]
    lease: Stored[QueueLease]


class Collector:
    """One participant's share of the clearing."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._mine: list[Finished] = []
        self._swept_at = home.core.clock.boottime()
        self._swept = ""

    def finished(self, held: Held) -> None:
        """All items of a segment that this process holds are done."""
        self._mine.append(Finished(held.segment, held.content.version, held.content.header.large, held.stored))

    async def turn(self) -> None:
        """Clear away what this process finished and what is old enough by now."""
        now, quarantine = self._home.core.now(), self._home.settings.quarantine
        due = [f for f in self._mine if is_collectable(Segment.time_of(f.segment), now, quarantine)][:AT_ONCE]
        if due:
            self._mine = [f for f in self._mine if f not in due]
            for finished in due:
                await self._collect(finished)
        if self._home.core.clock.boottime() > self._swept_at + SWEEP_EVERY:
            self._swept_at = self._home.core.clock.boottime()
            await self.sweep_large()

    async def others(self, segment: str, lease: Stored[QueueLease]) -> None:
        """A finished segment of somebody else, who may be gone."""
        now, quarantine = self._home.core.now(), self._home.settings.quarantine
        if is_overdue(Segment.time_of(segment), now, quarantine):
            await self.now(segment, lease)

    async def now(self, segment: str, lease: Stored[QueueLease]) -> None:
        """Look at a segment whose lease was seen: delete both if it is finished, the lease if it is alone."""
        content = await read_segment(self._home, segment)
        if content is None:
            await discard_lease(self._home, lease)
        elif rules.is_full(lease.record, Segment.items_of(segment)):
            await self._collect(Finished(segment, content.version, content.header.large, lease))

    async def orphan(self, segment: str) -> None:
        """A lease that was listed without its segment."""
        lease = await self._home.core.records.read(self._home.names.lease(segment), QueueLease)
        if lease is not None:
            await self.now(segment, lease)

    async def sweep_large(self) -> None:
        """Delete large items older than the quarantine whose segment never came, or is gone.

        One page at a time: the next look goes on behind it.
        """
        names, store = self._home.names, self._home.core.store
        now, quarantine = self._home.core.now(), self._home.settings.quarantine
        rows = await store.list(names.all_large, self._swept or None, PAGE)
        self._swept = rows[-1].key if len(rows) == PAGE else ""
        of: dict[str, list[str]] = {}
        for key in [row.key for row in rows]:
            if (found := names.parse_large(key)) and is_overdue(Segment.time_of(found[0]), now, quarantine):
                of.setdefault(found[0], []).append(key)
        for segment, keys in of.items():
            if await store.get(names.segment(segment)) is None:
                for key in keys:
                    await store.delete(key)

    async def _collect(self, finished: Finished) -> None:
        names, store = self._home.names, self._home.core.store
        for item in finished.large:
            await store.delete(names.large(finished.segment, item))
        if isinstance(await store.delete(names.segment(finished.segment), finished.version), Gone):
            await discard_lease(self._home, finished.lease)
