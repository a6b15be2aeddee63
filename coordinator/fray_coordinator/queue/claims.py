"""Claiming a segment: the lease first, then the segment; the lease of one that is not there goes again."""

from __future__ import annotations

from dataclasses import dataclass

from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.protocol.queue_segments import looks_late
from fray_coordinator.queue.held import Content, Held
from fray_coordinator.queue.home import Home
from fray_coordinator.records import Stored
from fray_coordinator.store.api import Gone, Object
from fray_layouts.errors import Malformed
from fray_layouts.queue_names import Segment
from fray_layouts.queues import QueueLease, unpack


@dataclass(frozen=True, slots=True)
class Beaten:
    """Somebody else has the segment; `lease` as it lies there (None: it is gone)."""

    lease: Stored[QueueLease] | None


async def claim(home: Home, segment: str, timeout: float) -> Held | Beaten | None:
    """Claim a segment that was seen without a lease; None if there is nothing to be had in it.

    Raises:
        BadRecord: segment or lease is none; such a segment is set aside.
    """
    return await _write(home, segment, rules.claimed(_nonce(home), home.holder, timeout), None)


async def take_over(
    home: Home, segment: str, lease: Stored[QueueLease], timeout: float, with_word: bool = False
) -> Held | Beaten | None:
    """Take a segment whose lease was released or has expired. Raises as `claim` does.

    Args:
        with_word: it was this process's own.
    """
    wanted = rules.taken(lease.record, _nonce(home), home.holder, timeout, with_word)
    return await _write(home, segment, wanted, lease)


async def _write(
    home: Home, segment: str, wanted: QueueLease, current: Stored[QueueLease] | None
) -> Held | Beaten | None:
    sent = home.core.clock.boottime()
    written = await home.core.records.write(home.names.lease(segment), QueueLease, wanted, current)
    if not written.wrote or written.stored is None:
        return Beaten(written.stored)
    try:
        content = await read_segment(home, segment)
    except BadRecord as error:
        await home.core.records.write(
            written.stored.key, QueueLease, rules.set_aside(wanted, str(error)), written.stored
        )
        raise
    if content is None:
        await discard_lease(home, written.stored)
        return None
    if await _was_finished(home, segment, content):
        if isinstance(await home.core.store.delete(home.names.segment(segment), content.version), Gone):
            await discard_lease(home, written.stored)
        return None
    if rules.is_full(wanted, Segment.items_of(segment)):
        return None
    return Held(home, segment, written.stored, sent, content)


async def read_segment(home: Home, segment: str) -> Content | None:
    """The segment; None if it is absent. Raises BadRecord for what is none."""
    key = home.names.segment(segment)
    found = await home.core.store.get(key, one_of_many=True)
    try:
        return content_of(segment, found) if found is not None else None
    except Malformed as error:
        raise BadRecord(f"{key} does not hold the segment of a queue that its name promises: {error}") from None


def content_of(segment: str, found: Object) -> Content:
    """What lies under a segment's name. Raises Malformed for what is no segment of that name."""
    header, bodies = unpack(found.data)
    if len(bodies) != Segment.items_of(segment):
        raise Malformed(f"{len(bodies)} items, and {Segment.items_of(segment)} in its name")
    return Content(found.version, found.updated, header, bodies)


async def _was_finished(home: Home, segment: str, content: Content) -> bool:
    """Whether the segment landed, once more, after it was finished; to be asked under a lease."""
    late = looks_late(Segment.time_of(segment), content.updated, home.settings.quarantine)
    return late and await home.finished.holds(segment)


async def discard_lease(home: Home, lease: Stored[QueueLease]) -> None:
    """Delete the lease of a segment that was found absent after the lease was seen."""
    await home.core.store.delete(lease.key, lease.version)


def _nonce(home: Home) -> str:
    return home.core.chance.token(16)
