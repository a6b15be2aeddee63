"""The collector of a queue: deletes finished segments at once, and their leases after the finished log has their names.

So a lease without a segment belongs to a finished segment, or was never used, and nobody has to read it to know that.
"""

import asyncio
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import msgspec

from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.errors import BadRecord, StoreRefused, StoreUnavailable, is_outage
from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.protocol.queue_segments import (
    all_creates_landed,
    is_collectable,
    is_collection_overdue,
    last_create,
)
from fray_coordinator.queue.held_segment import HeldSegment, content_of, discard_lease
from fray_coordinator.queue.open_queue import OpenQueue
from fray_coordinator.store.interface import NameAbsent, Object
from fray_coordinator.store.records import Stored
from fray_layouts.errors import Malformed
from fray_layouts.queue_keys import SegmentName
from fray_layouts.queue_records import QueueLease

FINISHED_PER_OBJECT = 1000
"""Names of segments in one object of the finished log. With so many, its request costs next to nothing per segment."""
GATHERED = 100
"""Leases that may be deleted wait until there are so many, or for one quarantine, so that they share one request. Fewer
than so many more rows cost a listing nothing."""
SWEEP_INTERVAL = 600.0
"""Seconds between sweeps for large items without a segment. Only a producer that died leaves such items."""
SWEEP_PAGE = 1000
"""Large items listed in one sweep, so that no sweep takes long."""


class CompletedSegment(msgspec.Struct, frozen=True, gc=False):
    """A finished segment that must be deleted, with its large items and its lease."""

    segment: str
    version: str
    large: list[int]
    lease: Stored[QueueLease]


class Collector:
    """The collecting that one participant does."""

    def __init__(self, queue: OpenQueue) -> None:
        self._queue = queue
        self._clock = queue.core.clock
        self._finished: list[CompletedSegment] = []
        self._clearing = asyncio.Lock()  # if two cleared the same batch, the second would drop segments added meanwhile
        self._leases: dict[str, Stored[QueueLease]] = {}  # leases of finished segments that are deleted
        self._waiting: list[tuple[float, str]] = []  # a heap of their segments, by the time from which they may go
        self._due: list[str] = []  # the segments whose leases may go now
        self._receipts: dict[str, set[str]] = {}  # by receipt, its segments that still have leases
        self._receipt_of: dict[str, str] = {}
        self._due_since = 0.0
        self._orphans: dict[str, float] = {}
        self._swept_at = self._clock.boottime()
        self._swept = ""

    def finished(self, segments: Sequence[HeldSegment], receipt: str) -> None:
        """Note the segments that this process finished. receipt: the one that says so; "" if the leases say so."""
        self._finished += [
            CompletedSegment(held.name, held.content.version, held.content.header.large, held.lease.stored)
            for held in segments
        ]
        if receipt and segments:
            self._receipts[receipt] = {held.name for held in segments}
            self._receipt_of.update(dict.fromkeys(self._receipts[receipt], receipt))

    async def turn(self) -> None:
        """Delete the segments that this process finished, and those of their leases that are old enough.

        It is called once a second.
        """
        now = self._clock.boottime()
        if not self._due:
            self._due_since = now
        while self._waiting and self._applies(is_collectable, self._waiting[0][0]):
            self._due.append(heappop(self._waiting)[1])
        if len(self._due) >= GATHERED or now >= self._due_since + self._queue.settings.quarantine:
            while batch := self._due[:FINISHED_PER_OBJECT]:
                await self._queue.finished.note(batch)
                try:
                    await self._delete_leases(batch)
                finally:
                    self._due[: len(batch)] = [segment for segment in batch if segment in self._leases]
        if now > self._swept_at + SWEEP_INTERVAL:
            self._swept_at = now
            await self.sweep_large()
            await self._queue.finished.sweep()
            await self._queue.receipts.sweep(self._queue.settings.quarantine)
        await self.clear()

    async def clear(self) -> None:
        """Delete the segments that this process finished.

        If a request is not answered, its segment waits for the next turn.
        """
        async with self._clearing:
            left: list[CompletedSegment] = []
            try:
                while batch := self._finished[:FINISHED_PER_OBJECT]:
                    gone = self._clear_small(batch)
                    others = [finished for finished in batch if finished.segment not in gone]
                    cleared = await map_concurrently(others, self._is_cleared)
                    self._finished = self._finished[len(batch) :]
                    left += [finished for finished, done in zip(others, cleared, strict=True) if not done]
            finally:
                self._finished += left

    async def collect_overdue(self, segment: str, lease: Stored[QueueLease]) -> None:
        """Collect a finished segment of another consumer that has had time to collect it."""
        if self._applies(is_collection_overdue, SegmentName.time_of(segment)):
            await self.collect(segment, lease)

    async def collect(self, segment: str, lease: Stored[QueueLease]) -> None:
        """Read the segment of a lease, and delete both if the segment is finished.

        If the segment is absent, only the lease is deleted.
        """
        found = await self._queue.core.store.get(self._queue.keys.segment(segment))
        complete = rules.is_complete(lease.record, SegmentName.items_of(segment))
        if complete or (lease.record.owner and await self._queue.receipts.names(segment, lease.record.owner)):
            if found is None:
                self._keep_lease(segment, lease)
            else:
                await self._clear(CompletedSegment(segment, found.version, _large_in(segment, found), lease))
        elif found is None:
            await discard_lease(self._queue, lease)

    async def collect_orphans(self, segments: list[str], all_of_them: bool) -> None:
        """Collect leases that were listed without their segments. all_of_them: the listing was complete."""
        now, known = self._clock.boottime(), self._orphans
        seen = {segment: known.get(segment, now) for segment in segments if segment not in self._leases}
        self._orphans = seen if all_of_them else known | seen
        await map_concurrently(
            [segment for segment in seen if self._is_left(segment, now - seen[segment])], self._collect_orphan
        )

    def _is_left(self, segment: str, seen_for: float) -> bool:
        """Whether the consumer that finished the segment would have deleted its lease by now."""
        named = SegmentName.time_of(segment)
        if self._applies(all_creates_landed, named):
            return True
        due = self._applies(is_collection_overdue, named) or named > self._queue.core.now()
        return seen_for > self._queue.settings.quarantine and due

    async def _collect_orphan(self, segment: str) -> None:
        try:
            lease = await self._queue.core.records.read(self._queue.keys.lease(segment), QueueLease)
            if lease is not None:
                await self.collect(segment, lease)
        except (BadRecord, StoreRefused, StoreUnavailable) as error:  # fsck reports it
            if is_outage(error):
                raise

    async def sweep_large(self) -> None:
        """Delete large items whose segment is absent and cannot be created any more.

        Each sweep goes on where the last one ended.
        """
        keys, store = self._queue.keys, self._queue.core.store
        rows = await store.list(keys.all_large, self._swept or None, SWEEP_PAGE)
        self._swept = rows[-1].key if len(rows) == SWEEP_PAGE else ""
        of: dict[str, list[str]] = {}
        for key in [row.key for row in rows]:
            if (found := keys.parse_large(key)) and self._applies(all_creates_landed, SegmentName.time_of(found[0])):
                of.setdefault(found[0], []).append(key)
        for segment, items in of.items():
            if await store.get(keys.segment(segment)) is None:
                for key in items:
                    await store.delete(key)

    def _clear_small(self, batch: Sequence[CompletedSegment]) -> set[str]:
        """Delete at once what storage with free requests can delete at once; the segments that certainly are gone."""
        names = {self._queue.keys.segment(one.segment): one for one in batch if not one.large}
        gone = [names[key] for key in self._queue.core.store.delete_batch(list(names))]
        for one in gone:
            self._keep_lease(one.segment, one.lease)
        return {one.segment for one in gone}

    async def _is_cleared(self, finished: CompletedSegment) -> bool:
        try:
            await self._clear(finished)
        except StoreUnavailable as error:
            if is_outage(error):
                raise
            return False
        return True

    async def _clear(self, finished: CompletedSegment) -> None:
        """Delete a finished segment and its large items; after that its lease waits to be deleted."""
        keys, store = self._queue.keys, self._queue.core.store
        for item in finished.large:
            await store.delete(keys.large(finished.segment, item))
        if isinstance(await store.delete(keys.segment(finished.segment), finished.version), NameAbsent):
            self._keep_lease(finished.segment, finished.lease)

    def _keep_lease(self, segment: str, lease: Stored[QueueLease]) -> None:
        """Keep the lease of a deleted segment until it may be deleted, too.

        The time in the segment's name decides when. If that is far in the future, the time when the lease was written
        decides, since no create was sent after that.
        """
        if segment not in self._leases:
            quarantine = self._queue.settings.quarantine
            heappush(
                self._waiting, (min(SegmentName.time_of(segment), last_create(lease.updated, quarantine)), segment)
            )
        self._leases[segment] = lease

    async def _delete_leases(self, segments: Sequence[str]) -> None:
        """Delete the leases of segments that the finished log has, and the receipts that nobody needs after that."""
        keys, store = self._queue.keys, self._queue.core.store
        again = store.delete_batch([keys.segment(segment) for segment in segments])
        gone = store.delete_batch([keys.lease(segment) for segment in segments if keys.segment(segment) in again])
        for segment in segments:
            if keys.lease(segment) in gone:
                del self._leases[segment]
        await map_concurrently([segment for segment in segments if segment in self._leases], self._delete_lease)
        for segment in segments:
            if receipt := self._receipt_of.pop(segment, ""):
                self._receipts[receipt].discard(segment)
                if not self._receipts[receipt]:
                    del self._receipts[receipt]
                    await self._queue.receipts.remove(receipt)

    async def _delete_lease(self, segment: str) -> None:
        """Delete the lease, and first the segment again: it may have been created once more without looking late."""
        if (lease := self._leases.pop(segment, None)) is not None:
            await self._queue.core.store.delete(self._queue.keys.segment(segment))
            await discard_lease(self._queue, lease)

    def _applies(self, rule: Callable[[float, float, float], bool], named: float) -> bool:
        """Whether a rule of `queue_segments` holds now for a segment with this time in its name."""
        return rule(named, self._queue.core.now(), self._queue.settings.quarantine)


def _large_in(segment: str, found: Object) -> list[int]:
    """The items that are objects of their own. Those of a segment that cannot be read are left to the sweep."""
    try:
        return content_of(segment, found).header.large
    except Malformed:
        return []
