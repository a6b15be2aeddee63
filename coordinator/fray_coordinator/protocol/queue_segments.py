"""Segments of a queue: when one counts, when one may go, and how they are named.

Invariant: a push that returned put its items into a segment that every consumer takes for valid until it is done.

Unsafe sequence: a producer's create is on its way for minutes, the producer sends it again, a consumer does the items,
the segment is collected, and then the first create lands: the items are back from the dead.

Why it cannot happen: the name carries the time at which it was made, and nothing of that name is collected before half
the quarantine has passed since. What the storage creates later than that is void: consumers delete it, and a producer
pushes again under a new name before its push returns. Both judge by the same time, the storage's `updated`; a producer
that was not told it takes the time of the answer, which is later.
"""

from __future__ import annotations

import hashlib

from fray_layouts.queue_names import MOST_ORDERS, Segment

CLOCK_MARGIN = 2.0
"""Seconds by which the storage's clock, known from answers cut to whole seconds, may be misjudged."""
MOST_ITEMS = 250
FEWEST_SEGMENTS = 64
LARGE_ITEM = 64 * 1024
"""Bytes from which an item is an object of its own."""
LETTER_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"


def is_void(named: float, born: float, quarantine: float) -> bool:
    """Whether a segment that the storage created at `born` came too late for the time in its name."""
    return born > named + quarantine / 2


def is_collectable(named: float, now: float, quarantine: float) -> bool:
    """Whether a finished segment may be deleted: whatever creates it again from now on makes it void."""
    return now > named + quarantine / 2 + CLOCK_MARGIN


def is_overdue(named: float, now: float, quarantine: float) -> bool:
    """Whether the one who finished a segment has had its time to collect it, so that anyone should."""
    return now > named + quarantine + CLOCK_MARGIN


def batch_size(items: int, wanted: int | None) -> int:
    """Items of each segment: as the caller wants, else so that many consumers find something to do.

    Never more than the names of dead letters can tell apart.
    """
    return min(wanted or min(MOST_ITEMS, max(1, items // FEWEST_SEGMENTS)), MOST_ORDERS)


def letter_name(time: float, segment: str, item: int) -> Segment:
    """The name under which an item is a dead letter: the same for everybody who buries it at that time."""
    number = int.from_bytes(hashlib.blake2b(segment.encode(), digest_size=8).digest(), "big")
    token = "".join(LETTER_DIGITS[number >> 5 * digit & 31] for digit in range(6))
    return Segment(time, item, token, 1)
