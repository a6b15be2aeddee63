"""Segments of a queue: how they are named, and when what is left of a finished one may go.

Invariant: a segment counts whenever it lands, until its lease says that its items are done; then never again.

Unsafe sequence: a producer's create is on its way for minutes, the producer sends it again, a consumer does the items,
segment and lease are deleted, and then the first create lands: the items are back from the dead.

Why it cannot happen: the lease of a finished segment stays until half the quarantine after the time in its name. Then
its name is written down, together with many others, before the lease goes, and is kept until no create is on its way
any more. What lands later looks late by the storage's own time; so whoever claims what looks late looks there first,
and takes what is written down for finished. That something looks late alone means nothing: a copy, a restored backup or
a changed mode looks so, too.
"""

from __future__ import annotations

import hashlib

from fray_layouts.key_encoding import BASE32_DIGITS
from fray_layouts.queue_keys import MAX_ORDERS, SegmentName

CLOCK_MARGIN = 2.0
"""Seconds by which the storage's clock, known from answers cut to whole seconds, may be misjudged."""
MAX_CREATE_QUARANTINES = 60.0
"""Quarantines that a create may be on its way: an hour, as a rule."""
MAX_BATCH_ITEMS = 250
MIN_SEGMENTS = 64
LARGE_ITEM_BYTES = 64 * 1024
"""Bytes from which an item is an object of its own."""


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


def is_create_too_slow(named: float, now: float, quarantine: float) -> bool:
    """Whether large items of that name may be taken for those of a segment that never comes, before it has landed."""
    return now > named + MAX_CREATE_QUARANTINES * quarantine / 2


def batch_size(items: int, wanted: int | None) -> int:
    """Items of each segment: as the caller wants, else so that many consumers find something to do.

    Never more than the names of dead letters can tell apart.
    """
    return min(wanted or min(MAX_BATCH_ITEMS, max(1, items // MIN_SEGMENTS)), MAX_ORDERS)


def dead_letter_name(time: float, segment: str, item: int) -> SegmentName:
    """The name under which an item is a dead letter: the same for everybody who buries it at that time."""
    number = int.from_bytes(hashlib.blake2b(segment.encode(), digest_size=8).digest(), "big")
    token = "".join(BASE32_DIGITS[number >> 5 * digit & 31] for digit in range(6))
    return SegmentName(time, item, token, 1)
