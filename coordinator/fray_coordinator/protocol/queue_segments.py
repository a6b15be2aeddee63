"""Segments of a queue: their size and name, and when what is left of a finished one may be deleted.

**Invariant.** A segment counts whenever it lands, until its lease says that its items are done; then never again.

**Unsafe sequence.** A producer's create is on its way for minutes. The producer sends it again, a consumer does the
items, segment and lease are deleted, and then the first create lands: finished items are delivered again.

**Why this cannot happen.** The lease of a finished segment stays until half the quarantine after the time in its name.
Before the lease is deleted, the segment's name is written to the log of finished segments, where it stays until no
create can be on its way any more. A create that lands later looks late by the storage's own time. Whoever claims a
segment that looks late reads that log first, and takes a segment that is in it for finished. To look late alone means
nothing: a copy, a restored backup or a changed mode looks late, too.
"""

import hashlib

from fray_layouts.key_encoding import BASE32_DIGITS
from fray_layouts.queue_keys import MAX_ORDERS, SegmentName

CLOCK_MARGIN = 2.0
"""Seconds by which the storage's clock, known from answers cut to whole seconds, may be misjudged."""
MAX_CREATE_QUARANTINES = 60.0
"""How many quarantines a create may be on its way: an hour with the default quarantine of 60 s."""
MAX_BATCH_ITEMS = 250
"""Items of a segment unless the caller wants more: with so many, requests cost less than the work on the items."""
MIN_SEGMENTS = 64
"""Segments that one push makes by default, if it has so many items, so that as many consumers share them."""
LARGE_ITEM_BYTES = 64 * 1024
"""Bytes from which an item is an object of its own, so that a segment is read in one quick request."""


def looks_late(named: float, updated: float, quarantine: float) -> bool:
    """Whether a segment may have landed when it had been finished before; `updated`: as the storage says."""
    return updated > named + quarantine / 2


def is_collectable(named: float, now: float, quarantine: float) -> bool:
    """Whether the lease of a finished segment may be deleted: what lands from now on looks late."""
    return now > named + quarantine / 2 + CLOCK_MARGIN


def is_collection_overdue(named: float, now: float, quarantine: float) -> bool:
    """Whether whoever finished a segment of that name has had time to collect it."""
    return now > named + quarantine + CLOCK_MARGIN


def all_creates_landed(time: float, now: float, quarantine: float) -> bool:
    """Whether no create that was sent by then is on its way any more."""
    return now > time + MAX_CREATE_QUARANTINES * quarantine


def last_create(finished: float, quarantine: float) -> float:
    """A time in place of that in a segment's name, for a segment that was finished by then.

    No create of it was sent after that, so by `is_collectable` of this time `all_creates_landed` is true of that one.
    """
    return finished + (MAX_CREATE_QUARANTINES - 0.5) * quarantine


def is_create_too_slow(named: float, now: float, quarantine: float) -> bool:
    """Whether a create took so long that its large items may have been swept before it landed."""
    return now > named + MAX_CREATE_QUARANTINES * quarantine / 2


def batch_size(items: int, wanted: int | None) -> int:
    """Items of each segment of a push: `wanted`, or so few that many consumers find something to do.

    Never more than the names of dead letters can tell apart.
    """
    return min(wanted or min(MAX_BATCH_ITEMS, max(1, items // MIN_SEGMENTS)), MAX_ORDERS)


def dead_letter_name(time: float, segment: str, item: int) -> SegmentName:
    """The name of the item's dead letter: the same for everybody who writes it for that time."""
    number = int.from_bytes(hashlib.blake2b(segment.encode(), digest_size=8).digest(), "big")
    token = "".join(BASE32_DIGITS[number >> 5 * digit & 31] for digit in range(6))
    return SegmentName(time, item, token, 1)
