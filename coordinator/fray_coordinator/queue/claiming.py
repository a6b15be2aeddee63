"""Claims of segments: the lease is written first, then the segment is read.

If there is no segment, the lease is deleted again.
"""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.protocol.queue_segments import looks_late
from fray_coordinator.queue.held_segment import HeldSegment, SegmentContent
from fray_coordinator.queue.open_queue import OpenQueue
from fray_coordinator.store.interface import NameAbsent, Object
from fray_coordinator.store.records import Stored
from fray_layouts import codec
from fray_layouts.errors import Malformed
from fray_layouts.queue_keys import SegmentName
from fray_layouts.queue_records import QueueLease, decode_segment


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
