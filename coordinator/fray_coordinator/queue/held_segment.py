"""A segment that a consumer holds under one claim. Its items are ready, out, or done.

**Poison.** A suspect is delivered only to a process in which no other item is out. An item counts until its process
ends it, whether or not that can be written. One whose lease ran out and is not being written counts no more: its
process has died, or is late. If an item is then handed out beside which it could not be, its claim ends, since any
later write under that claim would bring it back. An item that a server passes on counts in the client process that
asked for it.

**Items.**

An item that is ready is taken, and is out. `complete` makes it done; `release` makes it ready again. After `lose`
nothing counts any more.

**Claims.** The lease is written first, then the segment is read. If there is no segment, the lease is deleted again.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

import msgspec

from fray_coordinator.errors import BadRecord
from fray_coordinator.per_process import PerProcess
from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.protocol.queue_segments import looks_late
from fray_coordinator.queue.delivery import Delivery, EncodedItem, LeaseLost
from fray_coordinator.queue.open_queue import OpenQueue
from fray_coordinator.queue.segment_lease import LeaseEdit, SegmentLease
from fray_coordinator.store.interface import NameAbsent, Object
from fray_coordinator.store.records import Stored
from fray_layouts import codec
from fray_layouts.errors import Malformed
from fray_layouts.queue_keys import SegmentName
from fray_layouts.queue_records import QueueLease, SegmentHeader, decode_segment


class Outstanding(Protocol):
    """An item that a process works on. suspect: it must be alone there."""

    suspect: bool

    def is_over(self) -> bool:
        """Whether its lease ran out, and no write is under way that renews it."""

    def end_claim(self) -> None:
        """Let nothing more be done under its lease."""


class PoisonIsolation:
    """The items that are out in one process, from whatever queues."""

    def __init__(self) -> None:
        self._suspects: set[Outstanding] = set()
        self._others: set[Outstanding] = set()

    def admits(self, suspect: bool) -> bool:
        """Whether an item may be handed out now."""
        return all(item.is_over() for item in self._obstacles(suspect))

    def enter(self, item: Outstanding) -> None:
        """Count an item as out until it leaves. The claims of items that were in its way end."""
        for other in self._obstacles(item.suspect):
            if other.is_over():
                other.end_claim()
        (self._suspects if item.suspect else self._others).add(item)

    def leave(self, item: Outstanding) -> None:
        self._suspects.discard(item)
        self._others.discard(item)

    def _obstacles(self, suspect: bool) -> Iterator[Outstanding]:
        """The items beside which an item may not be handed out until they are over."""
        return itertools.chain(self._suspects, self._others if suspect else ())


def isolation_of(process: str) -> PoisonIsolation:
    """The isolation of a process: "" is this one; a server's clients have the names that they send with their calls."""
    if process:
        return _of_clients.setdefault(process, PoisonIsolation())
    return _of_this_process.value


_of_this_process = PerProcess(PoisonIsolation)
_of_clients: WeakValueDictionary[str, PoisonIsolation] = WeakValueDictionary()
"""Each is kept alive by the items that are out there."""


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


@dataclass(frozen=True, slots=True)
class ClaimLost:
    """A claim that another consumer won. lease: the present one; None if there is none any more."""

    lease: Stored[QueueLease] | None


async def claim(queue: OpenQueue, segment: str, timeout: float) -> HeldSegment | ClaimLost | None:
    """Claim a segment that was listed without a lease; None if nothing is left to do in it.

    Raises:
        BadRecord: the segment or its lease cannot be read; such a segment is set aside.
        StoreUnavailable: the claim may have been applied.
    """
    return await _write_claim(queue, segment, rules.claimed(_owner(queue), queue.holder, timeout), None)


async def take_over(
    queue: OpenQueue, segment: str, lease: Stored[QueueLease], timeout: float, own_idle_claim: bool = False
) -> HeldSegment | ClaimLost | None:
    """Claim a segment whose lease was released or has expired, unless a receipt says that it is done.

    Raises as `claim` does.

    own_idle_claim: the expired claim was this process's own, and none of its items was handed out.
    """
    if lease.record.owner and await queue.receipts.names(segment, lease.record.owner):
        await queue.receipts.close_lease(lease, segment)
        return None
    wanted = rules.taken_over(lease.record, _owner(queue), queue.holder, timeout, own_idle_claim)
    return await _write_claim(queue, segment, wanted, lease)


def claim_batch(
    queue: OpenQueue, segments: Sequence[str], timeout: float
) -> dict[str, HeldSegment | Awaitable[HeldSegment | None]]:
    """Claim segments that were listed without a lease, in the caller's thread, if the storage can do that.

    Returns, by name, the segments that are certainly claimed, or an awaitable for the rest of a claim. A segment
    without a result is left to `claim`, which finds out what happened to it.
    """
    keys, store, sent = queue.keys, queue.core.store, queue.core.clock.boottime()
    lease = codec.successor(rules.claimed(_owner(queue), queue.holder, timeout), queue.core.rng.unique_id(), None)
    leases = {segment: keys.lease(segment) for segment in segments}
    created = store.create_batch(list(leases.values()), codec.encode(lease))
    places = {segment: keys.segment(segment) for segment in segments if leases[segment] in created}
    contents = store.read_batch(list(places.values()))
    results: dict[str, HeldSegment | Awaitable[HeldSegment | None]] = {}
    now = store.now()
    for segment, place in places.items():
        key, found = leases[segment], contents.get(place)
        applied = created[key]
        updated = now if applied.updated is None else applied.updated
        stored = Stored(key, lease, {}, applied.version, updated)
        if found is None or looks_late(SegmentName.time_of(segment), found.updated, queue.settings.quarantine):
            results[segment] = _read_claimed(queue, segment, stored, sent)
            continue
        try:
            results[segment] = HeldSegment(queue, segment, stored, sent, content_of(segment, found))
        except Malformed:
            results[segment] = _read_claimed(queue, segment, stored, sent)
    return results


async def _write_claim(
    queue: OpenQueue, segment: str, wanted: QueueLease, current: Stored[QueueLease] | None
) -> HeldSegment | ClaimLost | None:
    sent = queue.core.clock.boottime()
    key = queue.keys.lease(segment)
    written = await queue.core.records.write(key, QueueLease, wanted, current, one_of_many=True)
    if not written.wrote or written.stored is None:
        return ClaimLost(written.stored)
    return await _read_claimed(queue, segment, written.stored, sent)


async def _read_claimed(queue: OpenQueue, segment: str, lease: Stored[QueueLease], sent: float) -> HeldSegment | None:
    """The segment with this lease, which was just claimed; None if nothing is left to do in it. Raises BadRecord."""
    try:
        content = await read_segment(queue, segment)
    except BadRecord as error:
        await queue.core.records.write(lease.key, QueueLease, rules.set_aside(lease.record, str(error)), lease)
        raise
    if content is None:
        await discard_lease(queue, lease)
        return None
    if await _was_finished(queue, segment, content):
        if isinstance(await queue.core.store.delete(queue.keys.segment(segment), content.version), NameAbsent):
            await discard_lease(queue, lease)
        return None
    if rules.is_complete(lease.record, SegmentName.items_of(segment)):
        return None
    return HeldSegment(queue, segment, lease, sent, content)


async def read_segment(queue: OpenQueue, segment: str) -> SegmentContent | None:
    """The content of a segment; None if it is absent. Raises BadRecord if it cannot be read."""
    key = queue.keys.segment(segment)
    found = await queue.core.store.get(key, one_of_many=True)
    try:
        return content_of(segment, found) if found is not None else None
    except Malformed as error:
        raise BadRecord(f"{key} does not hold the segment that its name says: {error}") from None


def content_of(segment: str, found: Object) -> SegmentContent:
    """The content of an object that is a segment of this name. Raises Malformed if it is not one."""
    header, bodies = decode_segment(found.data)
    if len(bodies) != (named := SegmentName.items_of(segment)):
        raise Malformed(f"{len(bodies)} items, and {named} in its name")
    return SegmentContent(found.version, found.updated, header, bodies)


async def _was_finished(queue: OpenQueue, segment: str, content: SegmentContent) -> bool:
    """Whether the segment was created again after it was finished. The caller must hold its lease."""
    late = looks_late(SegmentName.time_of(segment), content.updated, queue.settings.quarantine)
    return late and await queue.finished.holds(segment)


async def discard_lease(queue: OpenQueue, lease: Stored[QueueLease]) -> None:
    """Delete the lease of a segment that was found absent after the lease was read."""
    await queue.core.store.delete(lease.key, lease.version)


def _owner(queue: OpenQueue) -> str:
    """The owner of a new claim."""
    return queue.consumer + queue.core.rng.unique_id()
