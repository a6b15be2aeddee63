"""The segments that a consumer holds, each under one claim, whose items are ready, out, or done.

ready --take--> out --complete--> done          release: out --> ready          lose: nothing counts any more
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import msgspec

from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.queue.delivery import Delivery, EncodedItem
from fray_coordinator.queue.errors import LeaseLost, UnknownLease
from fray_coordinator.queue.open_queue import OpenQueue
from fray_coordinator.queue.poison_isolation import PoisonIsolation
from fray_coordinator.queue.receipts import MAX_RECEIPT_SEGMENTS, ReceiptLog
from fray_coordinator.queue.segment_lease import LeaseEdit, SegmentLease
from fray_coordinator.store.records import Stored
from fray_layouts.errors import FrayError
from fray_layouts.queue_keys import SegmentName
from fray_layouts.queue_records import QueueLease, SegmentHeader


class SegmentContent(msgspec.Struct, frozen=True):
    """A segment as it was read. updated: when the storage wrote it, as it says."""

    version: str
    updated: float
    header: SegmentHeader
    bodies: list[bytes]


@dataclass(eq=False, slots=True)
class OutItem:
    """An item that is out: on its way to a process, or in its hands.

    Attributes:
        id: of the lease that it is handed out under.
        index: its place in the segment.
        suspect: it may have killed a process, so it is alone in this one.
        delivery: None until it was handed out.
    """

    segment: HeldSegment
    id: str
    index: int
    suspect: bool
    isolation: PoisonIsolation
    delivery: Delivery | None = field(default=None, repr=False)

    def is_over(self) -> bool:
        return self.segment.lease.lost or self.segment.lease.expired


class HeldSegment:
    """One claim of one segment, with its items.

    Attributes:
        ready: indices of the items to be handed out next, in order.
        out: items that are out, by lease id.
    """

    __slots__ = ("_queue", "_serials", "content", "lease", "name", "out", "ready")

    def __init__(
        self, queue: OpenQueue, name: str, stored: Stored[QueueLease], sent: float, content: SegmentContent
    ) -> None:
        self.name = name
        self.content = content
        self.lease = SegmentLease(queue, stored, sent)
        self.ready = deque(rules.undone_items(stored.record, SegmentName.items_of(name)))
        self.out: dict[str, OutItem] = {}
        self._queue = queue
        self._serials = itertools.count()

    @property
    def is_complete(self) -> bool:
        return rules.is_complete(self.lease.record, SegmentName.items_of(self.name))

    @property
    def is_idle(self) -> bool:
        """Whether nothing is out and nothing is being written."""
        return not self.out and not self.lease.is_being_written

    @property
    def delivered(self) -> list[OutItem]:
        """The items that were handed out."""
        return [item for item in self.out.values() if item.delivery is not None]

    def take(self, isolation: PoisonIsolation) -> OutItem | None:
        """Begin to hand out the next item; None if none is ready. `deliver`, `put_back` or `leave` comes next.

        isolation: of the process that it is for.
        """
        if not self.ready:
            return None
        index = self.ready.popleft()
        lease = f"{self.name}/{index}/{self.lease.owner}/{next(self._serials)}"
        item = OutItem(self, lease, index, self.lease.record.suspect, isolation)
        self.enter([item])
        return item

    def put_back(self, item: OutItem) -> None:
        """Undo `take`: the item is ready again."""
        self.ready.appendleft(item.index)
        self.leave(item)

    async def deliver(self, item: OutItem, body: bytes, number: int, timeout: float) -> Delivery:
        """Hand the item out, under a lease that is trusted and long enough; the start of a suspect is counted first.

        Args:
            number: which delivery it is.
            timeout: seconds; at least 0.4 of them will be left.

        Raises:
            LeaseLost, StoreUnavailable: as `SegmentLease.change` does.
        """
        if item.suspect:
            await self.lease.change(partial(rules.counted, item=item.index))
        while not (self.lease.trusted and rules.leaves_enough(self.lease.remaining, timeout)):
            await self.lease.change(partial(rules.renewed, timeout=timeout))
        now, encoded = self._queue.core.now(), EncodedItem(body, self.content.header.encoding)
        item.delivery = Delivery(item.id, encoded, number, now, now + self.lease.remaining)
        return item.delivery

    async def complete(self, items: Sequence[OutItem]) -> None:
        """Complete these items; returns when that has been written. Raises as `deliver` does."""
        bitmap = sum(1 << item.index for item in items)
        await self._end(items, partial(rules.completed, items=bitmap))

    def allows_receipt(self, items: Sequence[OutItem]) -> bool:
        """Whether these items can be completed by a receipt, as `queue_lease` says."""
        ending = [item.index for item in items]
        count = SegmentName.items_of(self.name)
        idle = not self.lease.is_being_written and not self.lease.unresolved
        return idle and rules.allows_receipt(self.lease.record, count, ending, self.lease.trusted)

    def ended_in_time(self) -> bool:
        """Whether a receipt of this claim that was written just now counts; then nothing else of the claim does."""
        if self.lease.trusted:
            self.lease.lost = True
            return True
        return False

    async def release(self, items: Sequence[OutItem], failed: bool) -> None:
        """Give these items back, and the lease too if nothing else is out. Raises as `deliver` does.

        failed: it counts towards the maximum; a start that was counted does not, unless the item failed.
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
        """Note that the claim is lost: nothing that is out under it counts any more."""
        self.lease.lost = True
        for item in list(self.out.values()):
            self.leave(item)

    def leave(self, item: OutItem) -> None:
        """Take the item out of `out`, and out of the isolation of its process."""
        self.out.pop(item.id, None)
        item.isolation.leave(item)

    async def body(self, index: int) -> bytes | None:
        """An item's bytes; None if it is an object of its own that is gone."""
        if index not in self.content.header.large:
            return self.content.bodies[index]
        found = await self._queue.core.store.get(self._queue.keys.large(self.name, index))
        return found.data if found else None

    def enter(self, items: Iterable[OutItem]) -> None:
        """Count items as out, until they `leave`."""
        for item in items:
            self.out[item.id] = item
            item.isolation.enter(item)

    async def _end(self, items: Sequence[OutItem], edit: LeaseEdit) -> None:
        """Write the end of items. Meanwhile they are not out; they are again if the write may not have been applied."""
        for item in items:
            self.leave(item)
        try:
            await self.lease.change(edit)
        except LeaseLost:
            raise
        except Exception:
            if self.lease.lost:
                raise LeaseLost() from None
            self.enter(items)
            raise


log = logging.getLogger("fray")
MIN_RECEIPT_SEGMENTS = 2
"""Segments from which a receipt costs less than a write of each lease."""


class HeldSegments:
    """The segments of one consumer.

    Attributes:
        by_name: all of them.

    Args:
        receipts: of their queue.
        on_complete: called with a segment all of whose items are done, and the receipt that says so ("": the lease).
        on_release: called with a segment that was released.
    """

    def __init__(
        self,
        receipts: ReceiptLog,
        on_complete: Callable[[HeldSegment, str], None],
        on_release: Callable[[HeldSegment], None],
    ) -> None:
        self._receipts = receipts
        self.by_name: dict[str, HeldSegment] = {}
        self._stocked: dict[str, HeldSegment] = {}  # those that may have items to hand out
        self._on_complete = on_complete
        self._on_release = on_release

    def add(self, held: HeldSegment) -> None:
        self.by_name[held.name] = self._stocked[held.name] = held

    def next(self) -> HeldSegment | None:
        """The oldest segment that may have items to hand out; None if none has."""
        return self._stocked[min(self._stocked)] if self._stocked else None

    def skip(self, held: HeldSegment) -> None:
        """Take no more items of this segment, until one is released."""
        self._stocked.pop(held.name, None)

    def put_back(self, item: OutItem) -> None:
        """Have an item that was handed out handed out next."""
        item.segment.put_back(item)
        self._stocked[item.segment.name] = item.segment

    def lose(self, held: HeldSegment) -> None:
        """Hold a segment no longer whose claim is lost."""
        self._forget(held)
        held.lose()

    def delivered(self, lease: str) -> tuple[OutItem, Delivery]:
        """The item that was handed out under this lease. Raises UnknownLease."""
        held = self.by_name.get(lease.partition("/")[0])
        item = held.out.get(lease) if held else None
        if item is None or item.delivery is None:
            raise UnknownLease(lease)
        return item, item.delivery

    async def complete(self, leases: Iterable[str]) -> None:
        """Complete the items of these leases. Raises as `Consumer.done` does."""
        groups, unknown = self._grouped(leases)
        whole = {held: items for held, items in groups.items() if held.allows_receipt(items)}
        if len(whole) >= MIN_RECEIPT_SEGMENTS:
            todo = list(whole.items())
            for begin in range(0, len(todo), MAX_RECEIPT_SEGMENTS):
                batch = todo[begin : begin + MAX_RECEIPT_SEGMENTS]
                await asyncio.shield(asyncio.ensure_future(self._write_receipt(batch)))
            groups = {held: items for held, items in groups.items() if held.name in self.by_name}
        await self._act_on(groups, unknown, self._complete)

    async def release(self, leases: Iterable[str], failed: bool) -> None:
        """Give the items of these leases back. Raises as `Consumer.done` does."""
        await self._act_on(*self._grouped(leases), partial(self._release, failed=failed))

    async def give_back(self, held: HeldSegment) -> None:
        """Release what can be released of a segment; the rest comes back when its lease runs out."""
        try:
            await self._release(held, held.delivered, failed=False)
        except FrayError:
            return
        except Exception:
            log.exception("%s was not given back", held.name)

    def settle(self, held: HeldSegment) -> None:
        """Hold a segment no longer if all its items are done."""
        if held.is_complete and self.by_name.get(held.name) is held:
            self._forget(held)
            self._on_complete(held, "")

    async def _write_receipt(self, groups: Sequence[tuple[HeldSegment, list[OutItem]]]) -> None:
        """Complete whole segments by one receipt; where it comes too late, their items are out again."""
        done: dict[str, list[str]] = {}
        for held, _ in groups:
            done.setdefault(held.lease.owner, []).append(held.name)
        with ExitStack() as waiting:
            for held, items in groups:
                waiting.enter_context(held.lease.held_back())
                for item in items:
                    held.leave(item)
            receipt = ""
            try:
                receipt = await self._receipts.write(done)
            finally:
                for held, items in groups:
                    if receipt and held.ended_in_time():
                        self._forget(held)
                        self._on_complete(held, receipt)
                    elif not held.lease.lost:
                        held.enter(items)

    def _grouped(self, leases: Iterable[str]) -> tuple[dict[HeldSegment, list[OutItem]], list[str]]:
        """The items of these leases, by segment; and the leases without one."""
        unknown: list[str] = []
        groups: dict[HeldSegment, list[OutItem]] = {}
        for lease in dict.fromkeys(leases):
            try:
                item, _ = self.delivered(lease)
                groups.setdefault(item.segment, []).append(item)
            except UnknownLease:
                unknown.append(lease)
        return groups, unknown

    async def _act_on(
        self,
        groups: Mapping[HeldSegment, list[OutItem]],
        unknown: list[str],
        act: Callable[[HeldSegment, Sequence[OutItem]], Awaitable[None]],
    ) -> None:
        """`act` on the items of each segment. Raises UnknownLease afterwards, for `unknown` too."""
        lost: list[str] = []

        async def act_on(held: HeldSegment, items: list[OutItem]) -> None:
            out = [item for item in items if item.id in held.out]
            unknown.extend(item.id for item in items if item not in out)
            try:
                if out:
                    await act(held, out)
            except LeaseLost:
                self.lose(held)
                lost.extend(item.id for item in out)

        # shielded: what was sent may land though the caller is cancelled, and then the item must not count as out
        await map_concurrently(groups.items(), lambda group: asyncio.shield(asyncio.ensure_future(act_on(*group))))
        if unknown or lost:
            raise (UnknownLease if unknown else LeaseLost)(*unknown, *lost)

    async def _complete(self, held: HeldSegment, items: Sequence[OutItem]) -> None:
        await self._written(held, held.complete(items))
        self.settle(held)

    async def _release(self, held: HeldSegment, items: Sequence[OutItem], failed: bool) -> None:
        whole = len(items) == len(held.out)
        if whole:
            self._forget(held)
        await self._written(held, held.release(items, failed))
        if whole:
            self._on_release(held)
        else:
            self._stocked[held.name] = held

    async def _written(self, held: HeldSegment, end: Awaitable[None]) -> None:
        """Wait until the end of items was written; a segment that may not have been given back is still held."""
        try:
            await end
        except Exception:
            if not held.lease.lost:
                self.by_name[held.name] = held
            raise

    def _forget(self, held: HeldSegment) -> None:
        self._stocked.pop(held.name, None)
        if self.by_name.get(held.name) is held:
            del self.by_name[held.name]
