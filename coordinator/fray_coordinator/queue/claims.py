"""Claiming a segment: the lease first, then the segment; the lease of one that is not there goes again."""

from __future__ import annotations

from dataclasses import dataclass

from fray_coordinator.errors import BadRecord
from fray_coordinator.protocol import queue_lease as rules
from fray_coordinator.protocol.queue_segments import looks_late
from fray_coordinator.queue.held import Content, Held
from fray_coordinator.queue.home import Home
from fray_coordinator.records import Stored
from fray_coordinator.store.api import Gone
from fray_layouts.errors import Malformed
from fray_layouts.queue_names import Segment
from fray_layouts.queues import QueueLease, unpack


@dataclass(frozen=True, slots=True)
class Beaten:
    """Somebody else has the segment; `lease` as it lies there (None: it is gone)."""

    lease: Stored[QueueLease] | None


async def claim(home: Home, segment: str, timeout: float) -> Held | Beaten | None:
    """Claim a segment that was seen without a lease; None if there is nothing to be had in it."""
    return await _write(home, segment, rules.claimed(_nonce(home), home.holder, timeout), None)


async def take_over(
    home: Home, segment: str, lease: Stored[QueueLease], timeout: float, with_word: bool = False
) -> Held | Beaten | None:
    """Take a segment whose lease was released or has expired. with_word: it was this process's own."""
    wanted = rules.taken(lease.record, _nonce(home), home.holder, timeout, with_word)
    return await _write(home, segment, wanted, lease)


async def _write(
    home: Home, segment: str, wanted: QueueLease, current: Stored[QueueLease] | None
) -> Held | Beaten | None:
    sent = home.core.clock.boottime()
    written = await home.core.records.write(home.names.lease(segment), QueueLease, wanted, current)
    if not written.wrote or written.stored is None:
        return Beaten(written.stored)
    content = await read_segment(home, segment)
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
    found = await home.core.store.get(key)
    if found is None:
        return None
    try:
        return Content(found.version, found.updated, *unpack(found.data))
    except Malformed as error:
        raise BadRecord(f"{key} does not hold a segment of a queue: {error}; look at it, then remove it") from None


async def _was_finished(home: Home, segment: str, content: Content) -> bool:
    """Whether the segment landed, once more, after it was finished; to be asked under a lease."""
    late = looks_late(Segment.time_of(segment), content.updated, home.settings.quarantine)
    return late and await home.finished.holds(segment)


async def discard_lease(home: Home, lease: Stored[QueueLease]) -> None:
    """Delete the lease of a segment that was found absent after the lease was seen."""
    await home.core.store.delete(lease.key, lease.version)


def _nonce(home: Home) -> str:
    return home.core.chance.token(16)
