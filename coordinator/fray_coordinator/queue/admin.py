"""Administration of a queue: counts the items, shows the next ones, and completes all of them."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from fray_coordinator.actors import naming
from fray_coordinator.concurrency import map_concurrently, map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.protocol.queue_segments import parse_listing
from fray_coordinator.queue.delivery import EncodedItem
from fray_coordinator.queue.held_segment import HeldSegment, read_segment
from fray_coordinator.queue.open_queue import OpenQueue
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import NameKeys
from fray_layouts.queue_keys import SegmentName
from fray_layouts.queue_records import DeadLetterOrigin, QueueLease


@dataclass(slots=True)
class Counts:
    """Numbers of items by state.

    Attributes:
        available: items that nobody has.
        pending: undone items in segments that somebody holds.
        segments: objects that hold items, finished ones included.
        oldest: when the oldest undone item was pushed, by the storage's clock; None if there is none.
        problems: segments that are set aside, and segments whose leases cannot be read; `fray fsck` tells the reasons.
    """

    available: int = 0
    pending: int = 0
    segments: int = 0
    oldest: float | None = None
    problems: int = 0


@dataclass(frozen=True, slots=True)
class Peeked:
    """An item that was read without being taken.

    Attributes:
        index: its place in the segment.
        origin: where a dead letter comes from; None for any other item.
    """

    item: EncodedItem
    segment: str
    index: int
    origin: DeadLetterOrigin | None


async def count_items(queue: OpenQueue, mine: Mapping[str, HeldSegment]) -> Counts:
    """Count the items, by one listing and one read of each lease.

    mine: the segments that this process holds. It knows their items exactly, unless it is just writing the lease.
    """
    free, leased = await _list_segments(queue)
    settled = {segment: held for segment, held in mine.items() if not held.lease.is_being_written}
    mine = {segment: held for segment, held in settled.items() if not held.lease.expired}
    counts = Counts(sum(map(SegmentName.items_of, free)), 0, len(free) + len(leased))
    waiting = list(free)
    for segment in [segment for segment in leased if segment in mine]:
        counts.available += len(mine[segment].ready)
        counts.pending += len(mine[segment].out)
        waiting.append(segment)
    others = [segment for segment in leased if segment not in mine]
    for segment, lease in zip(others, await map_concurrently(others, lambda s: _read_lease(queue, s)), strict=True):
        if isinstance(lease, BadRecord) or (lease is not None and lease.record.problem):
            counts.problems += 1
            continue
        left = len(rules.undone_items(lease.record, SegmentName.items_of(segment))) if lease else 0
        if lease is not None and _is_held(queue, lease):
            counts.pending += left
        else:
            counts.available += left
        if left:
            waiting.append(segment)
    counts.oldest = SegmentName.time_of(min(waiting)) if waiting else None
    return counts


async def peek_items(queue: OpenQueue, mine: Mapping[str, HeldSegment], limit: int = 1) -> list[Peeked]:
    """The oldest items that nobody has; they stay in the queue."""
    found: list[Peeked] = []
    free, leased = await _list_segments(queue)
    for segment in sorted(free + leased):
        if len(found) >= limit:
            break
        with suppress(BadRecord):  # the consumer that claims it will set it aside
            found += await _available_in(queue, segment, segment in leased, mine.get(segment))
    return found[:limit]


async def purge_items(queue: OpenQueue) -> dict[str, int]:
    """Complete every item, whoever has it; returns how many there were in each segment.

    The collectors delete the segments.
    """
    free, leased = await _list_segments(queue)

    async def close(segment: str) -> int:
        items, closed = SegmentName.items_of(segment), 0
        nonce = queue.core.rng.unique_id()

        def decide(found: QueueLease | None) -> QueueLease | None:
            nonlocal closed
            lease = found or rules.claimed(nonce, "purge", 0.0)
            closed = len(rules.undone_items(lease, items))
            return rules.purged(lease, items, nonce) if closed else None

        with suppress(BadRecord):  # nobody knows which of its items are done; fsck reports it
            await queue.core.records.update(queue.keys.lease(segment), QueueLease, decide)
        return closed

    segments = sorted(free + leased)
    return {
        segment: items
        for segment, items in zip(segments, await map_concurrently(segments, close), strict=True)
        if items
    }


async def list_queues(core: Core) -> list[tuple[str, str]]:
    """The (namespace, name) of every queue that has a name in a cluster."""
    rows = await core.store.list(NameKeys.area)
    named = [(found[0], found[2]) for row in rows if (found := NameKeys.parse(row.key)) and found[1] == "queue"]

    async def living(name: tuple[str, str]) -> tuple[str, str] | None:
        return name if await naming.read_held(core, name[0], "queue", name[1]) is not None else None

    odd: dict[str, str] = {}  # fsck reports them
    return [name for name in await map_noting_problems(named, living, odd, str) if name is not None]


async def _list_segments(queue: OpenQueue) -> tuple[list[str], list[str]]:
    rows = await queue.core.store.list(queue.keys.segments)
    listing = parse_listing(queue.keys, (row.key for row in rows))
    return listing.free, listing.leased


async def _read_lease(queue: OpenQueue, segment: str) -> Stored[QueueLease] | BadRecord | None:
    try:
        return await queue.core.records.read(queue.keys.lease(segment), QueueLease)
    except BadRecord as error:
        return error


def _is_held(queue: OpenQueue, lease: Stored[QueueLease]) -> bool:
    return bool(lease.record.owner) and not rules.has_expired(lease.record, 0.0, lease.updated, queue.core.now())


async def _available_in(queue: OpenQueue, segment: str, leased: bool, held: HeldSegment | None) -> list[Peeked]:
    """The items of a segment that nobody has."""
    items = list(range(SegmentName.items_of(segment)))
    if held is not None and not held.lease.expired:
        items = list(held.ready)
    elif leased and (lease := await _read_lease(queue, segment)) is not None:
        if isinstance(lease, BadRecord) or lease.record.problem:
            return []
        items = [] if _is_held(queue, lease) else rules.undone_items(lease.record, len(items))
    content = await read_segment(queue, segment) if items else None
    if content is None:
        return []
    header, found = content.header, []
    for item in items:
        body = content.bodies[item]
        if item in header.large and (large := await queue.core.store.get(queue.keys.large(segment, item))):
            body = large.data
        found.append(Peeked(EncodedItem(body, header.encoding), segment, item, header.dead_letter))
    return found
