"""Segments of a queue: their size and name, and when the lease of a finished one may be deleted.

**Invariant.** A segment counts whenever its create is applied, until its lease says that all items are done. After that
it never counts again.

**Unsafe sequence.**

1. Producer P sends a create, which is on its way for minutes, and sends it again.
2. The second create is applied. Consumer C finishes the items, and segment and lease are deleted.
3. The first create is applied, and finished items are delivered again.

**Why this cannot happen.** The lease of a finished segment stays until half the quarantine after the time in its name.
Before the lease is deleted, the segment's name is written to the log of finished segments, and stays there until no
create can be on its way any more. A create that is applied after the lease was deleted looks late by the storage's own
time. A consumer that claims a segment that looks late reads that log first, and treats a segment that it finds there as
finished. A segment is not finished merely because it looks late: a copy, a restored backup or a changed mode makes it
look late, too.
"""

import hashlib

from fray_layouts.key_encoding import BASE32_DIGITS
from fray_layouts.queue_keys import MAX_ORDERS, SegmentName

CLOCK_MARGIN = 2.0
"""Seconds by which a reading of the storage's clock may be wrong, since answers give it cut to whole seconds."""
MAX_CREATE_QUARANTINES = 60.0
"""Quarantines for which a create may be on its way: an hour with the default quarantine of 60 s."""
MAX_BATCH_ITEMS = 250
"""Items of a segment unless the caller asks for more. With so many, the requests cost less than the work on them."""
MIN_SEGMENTS = 64
"""Segments that one push makes by default, if it has so many items, so that many consumers share them."""
LARGE_ITEM_BYTES = 64 * 1024
"""Bytes from which an item is stored in an object of its own, so that one quick request reads a segment."""


def looks_late(named: float, updated: float, quarantine: float) -> bool:
    """Whether the segment may have been created again after it was finished. updated: when the storage wrote it."""
    return updated > named + quarantine / 2


def is_collectable(named: float, now: float, quarantine: float) -> bool:
    """Whether the lease of a finished segment may be deleted: a create that is applied from now on looks late."""
    return now > named + quarantine / 2 + CLOCK_MARGIN


def is_collection_overdue(named: float, now: float, quarantine: float) -> bool:
    """Whether the process that finished a segment of this name has had time to collect it.

    It waits for half a quarantine, and then for up to one quarantine for other segments to collect together with it.
    """
    return now > named + 2 * quarantine + CLOCK_MARGIN


def all_creates_landed(time: float, now: float, quarantine: float) -> bool:
    """Whether no create that was sent by `time` is on its way any more."""
    return now > time + MAX_CREATE_QUARANTINES * quarantine


def last_create(finished: float, quarantine: float) -> float:
    """A time to use instead of the one in a segment's name, for a segment that was finished by then.

    No create of it was sent after that, so once `is_collectable` is true of the returned time, `all_creates_landed` is
    true of `finished`.
    """
    return finished + (MAX_CREATE_QUARANTINES - 0.5) * quarantine


def is_create_too_slow(named: float, now: float, quarantine: float) -> bool:
    """Whether a create took so long that the sweep may have deleted its large items before it was applied."""
    return now > named + MAX_CREATE_QUARANTINES * quarantine / 2


def batch_size(items: int, wanted: int | None) -> int:
    """Items of each segment of a push: `wanted`, or so few that many consumers find something to do.

    There are never more than the names of dead letters can tell apart.
    """
    return min(wanted or min(MAX_BATCH_ITEMS, max(1, items // MIN_SEGMENTS)), MAX_ORDERS)


def dead_letter_name(time: float, segment: str, item: int) -> SegmentName:
    """The name of the item's dead letter. Everybody who writes it for that time uses the same name."""
    number = int.from_bytes(hashlib.blake2b(segment.encode(), digest_size=8).digest(), "big")
    token = "".join(BASE32_DIGITS[number >> 5 * digit & 31] for digit in range(6))  # as long as a producer's
    return SegmentName(time, item, token, 1)
