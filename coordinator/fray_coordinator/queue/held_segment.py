"""A segment that a consumer holds under one claim. Its items are ready, out, or done.

ready --take--> out --complete--> done          release: out --> ready          lose: nothing counts any more
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.queue.delivery import Delivery, EncodedItem
from fray_coordinator.queue.errors import LeaseLost
from fray_coordinator.queue.open_queue import OpenQueue
from fray_coordinator.queue.poison_isolation import PoisonIsolation
from fray_coordinator.queue.segment_lease import LeaseEdit, SegmentLease
from fray_coordinator.store.records import Stored
from fray_layouts.queue_records import QueueLease, SegmentHeader


class SegmentContent(msgspec.Struct, frozen=True, gc=False):
    """A segment as it was read. updated: when the storage wrote it, by the storage's clock."""

    version: str
    updated: float
    header: SegmentHeader
    bodies: list[bytes]


class Instant(msgspec.Struct, frozen=True, gc=False):
    """A moment. boottime: on this process's clock; now: on the storage's."""

    boottime: float
    now: float

    @staticmethod
    def of(queue: OpenQueue) -> Instant:
        return Instant(queue.core.clock.boottime(), queue.core.now())


@dataclass(eq=False, slots=True)
class OutItem:
    """An item that is out: on its way to a process, or taken by it.

    Attributes:
        id: of the lease under which it is handed out.
        index: its place in the segment.
        suspect: it may have killed a process, so it must be alone in this one.
        delivery: None until it was handed out.
    """

    segment: HeldSegment
    id: str
    index: int
    suspect: bool
    isolation: PoisonIsolation
    delivery: Delivery | None = field(default=None, repr=False)

    def is_over(self) -> bool:
        lease = self.segment.lease
        return lease.lost or (lease.expired and not lease.is_being_written)

    def end_claim(self) -> None:
        """Note that the claim is lost. The segment keeps its items until its consumer finds that out."""
        self.segment.lease.lost = True


class HeldSegment:
    """One claim of one segment, with its items.

    Attributes:
        ready: indices of the items to hand out next, in order.
        out: items that are out, by lease id.
    """

    __slots__ = ("_queue", "_serials", "content", "lease", "name", "out", "ready")

    def __init__(
        self, queue: OpenQueue, name: str, stored: Stored[QueueLease], sent: float, content: SegmentContent
    ) -> None:
        self.name = name
        self.content = content
        self.lease = SegmentLease(queue, stored, sent)
        self.ready = deque(rules.undone_items(stored.record, len(content.bodies)))
        self.out: dict[str, OutItem] = {}
        self._queue = queue
        self._serials = itertools.count()

    @property
    def is_complete(self) -> bool:
        return rules.is_complete(self.lease.record, len(self.content.bodies))

    @property
    def is_idle(self) -> bool:
        """Whether no item is out and no write of the lease is under way."""
        return not self.out and not self.lease.is_being_written

    @property
    def delivered(self) -> list[OutItem]:
        """The items that were handed out."""
        return [item for item in self.out.values() if item.delivery is not None]

    def take(self, isolation: PoisonIsolation) -> OutItem | None:
        """Begin to hand out the next item; None if none is ready. Call `deliver`, `put_back` or `leave` next.

        isolation: that of the process for which it is.
        """
        if not self.ready:
            return None
        index = self.ready.popleft()
        lease = f"{self.name}/{index}/{self.lease.owner}/{next(self._serials)}"
        item = OutItem(self, lease, index, self.lease.record.suspect, isolation)
        self.out[lease] = item
        isolation.enter(item)
        return item

    def put_back(self, item: OutItem) -> None:
        """Undo `take`: the item is ready again."""
        self.ready.appendleft(item.index)
        self.leave(item)

    async def deliver(self, item: OutItem, body: bytes, number: int, timeout: float) -> Delivery:
        """Hand the item out, under a lease that is trusted and long enough. The start of a suspect is counted first.

        Args:
            number: the number of this delivery.
            timeout: seconds; at least 0.4 of them will be left.

        Raises:
            LeaseLost, StoreUnavailable: as `SegmentLease.change` does.
        """
        if item.suspect:
            await self.lease.change(partial(rules.counted, item=item.index))
        while not (self.lease.trusted and rules.leaves_enough(self.lease.remaining, timeout)):
            await self.lease.change(partial(rules.renewed, timeout=timeout))
        return self.hand_out(item, body, number, Instant.of(self._queue))

    def is_plain(self, timeout: float, instant: Instant) -> bool:
        """Whether the next item needs no request.

        No item of the segment failed or is an object of its own, and the lease lasts long enough.
        """
        record = self.lease.stored.record
        return (
            not (record.suspect or record.failures or self.content.header.large)
            and self.lease.trusted_at(instant.boottime)
            and rules.leaves_enough(self.lease.remaining_at(instant.boottime), timeout)
        )

    def hand_out_plain(self, isolation: PoisonIsolation, instant: Instant) -> Delivery | None:
        """Hand out the next item of a segment that `is_plain`; None if none is ready."""
        if (item := self.take(isolation)) is None:
            return None
        number = rules.delivery_number(self.lease.record, item.index)
        return self.hand_out(item, self.content.bodies[item.index], number, instant)

    def hand_out(self, item: OutItem, body: bytes, number: int, instant: Instant) -> Delivery:
        """Hand the item out, under a lease that allows it."""
        deadline = instant.now + self.lease.remaining_at(instant.boottime)
        encoded = EncodedItem(body, self.content.header.encoding)
        item.delivery = Delivery(item.id, encoded, number, instant.now, deadline)
        return item.delivery

    async def complete(self, items: Sequence[OutItem]) -> None:
        """Complete these items; returns when that is written. Raises as `deliver` does."""
        bitmap = sum(1 << item.index for item in items)
        await self._end(items, partial(rules.completed, items=bitmap))

    def allows_receipt(self, ending: int, boottime: float) -> bool:
        """Whether `ending` of its items can be completed by a receipt now, by the rules of `queue_lease`."""
        lease, items = self.lease, len(self.content.bodies)
        idle = not lease.is_being_written and not lease.unresolved
        return idle and rules.allows_receipt(lease.record, items, ending, lease.trusted_at(boottime))

    def ended_in_time(self, boottime: float) -> bool:
        """Whether a receipt of this claim that was written just now counts; then nothing else of the claim does."""
        if self.lease.trusted_at(boottime):
            self.lease.lost = True
            return True
        return False

    async def release(self, items: Sequence[OutItem], failed: bool) -> None:
        """Give these items back, and the lease too if nothing else is out. Raises as `deliver` does.

        failed: it counts towards the maximum of deliveries. A counted start of a suspect counts no more, unless the
        item failed.
        """
        whole = len(items) == len(self.out)
        counts = {item.index: int(failed) - int(item.suspect) for item in items}

        def edit(lease: QueueLease) -> QueueLease:
            for index, by in counts.items():
                lease = rules.counted(lease, index, by) if by else lease
            return rules.released(lease) if whole else lease

        await self._end(items, edit)
        if not whole:
            self.ready.extendleft(sorted(counts, reverse=True))

    def lose(self) -> None:
        """Note that the claim is lost: no item that is out under it counts any more."""
        self.lease.lost = True
        for item in list(self.out.values()):
            self.leave(item)

    def leave(self, item: OutItem) -> None:
        """Remove the item from `out`, and from the isolation of its process."""
        self.out.pop(item.id, None)
        item.isolation.leave(item)

    def return_to_out(self, items: Iterable[OutItem]) -> None:
        """Have items out again whose end may not be written. No process works on them any more."""
        self.out.update((item.id, item) for item in items)

    async def body(self, index: int) -> bytes | None:
        """An item's bytes; None if it is an object of its own that is gone."""
        if index not in self.content.header.large:
            return self.content.bodies[index]
        found = await self._queue.core.store.get(self._queue.keys.large(self.name, index))
        return found.data if found else None

    async def _end(self, items: Sequence[OutItem], edit: LeaseEdit) -> None:
        """Write the end of items, which are not out meanwhile.

        They are out again if the write may not have been applied.
        """
        for item in items:
            self.leave(item)
        try:
            await self.lease.change(edit)
        except LeaseLost:
            raise
        except Exception:
            if self.lease.lost:
                raise LeaseLost() from None
            self.return_to_out(items)
            raise
