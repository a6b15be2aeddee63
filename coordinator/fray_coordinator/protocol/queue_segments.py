"""Segments of a queue: their size and name, which one to claim, and when the lease of a finished one may go.

**Names and leases.**

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

**Scans** of a queue: what a listing of segments and leases shows, which segment to claim, and when to scan again.

**Invariant.** A segment that nobody holds is claimed by some live consumer. Only the claim decides who has it; a
scan only saves requests.

**Unsafe sequence.**

1. Consumers A and B share the segments between them, and segment S falls to B.
2. B dies.
3. A leaves S to B for ever.

**Why this cannot happen.** A consumer leaves the segments of others to them only while there is more to list. At the
end of the queue it lists again, and then tries the segments that the others have left.

A lease sorts right behind its segment, so one listing shows both. A listing is old when it arrives: a segment without a
lease in it may be claimed meanwhile, and a claim that another consumer wins costs two requests. So consumers that know
of each other share the segments by rendezvous hashing, and each begins with those for which it ranks first. A consumer
that scans in vain because of others rests longer, and one that finds work rests less, so that as many stay awake as are
needed.
"""

import hashlib
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from math import exp2
from zlib import crc32

from fray_layouts.key_encoding import BASE32_DIGITS, encode_time
from fray_layouts.queue_keys import MAX_ORDERS, QueueKeys, SegmentName

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


MAX_SPREAD_PER_CONSUMER = 8
"""Segments per known consumer among which a consumer chooses at most. It bounds how far items overtake one another."""
MIN_REST, MAX_REST = 0.2, 5.0
"""Seconds between two scans of a consumer that finds nothing, at least and at most."""
REST_HALF_LIFE = 2.0
"""Seconds of work that halve a consumer's rest."""
MAX_LISTING_AGE = 0.3
"""Seconds after which a listing with few free segments is too old: each other consumer takes one in about that time."""
CREATE_SETTLE_SECONDS = 5.0
"""Seconds within which a create is usually applied: a consumer lists names that young again before it counts a queue as
empty. It finds a create that is applied later on the repair interval."""


@dataclass(slots=True)
class SegmentListing:
    """One listing, in the order of the queue: segments without a lease, segments with one, leases without a segment."""

    free: list[str] = field(default_factory=list)
    leased: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)


def parse_listing(names: QueueKeys, keys: Iterable[str], before: str = "") -> SegmentListing:
    """The segments and leases of a listing. before: the last segment of the previous page."""
    listing = SegmentListing()
    last = before
    for segment, is_lease in filter(None, map(names.parse, keys)):
        if not is_lease:
            listing.free.append(segment)
            last = segment
        elif segment != last:
            listing.orphans.append(segment)
        else:
            listing.leased.append(segment)
            if listing.free and listing.free[-1] == segment:
                listing.free.pop()
    return listing


def pick_segment(free: Sequence[str], me: str, others: Set[str], spread: int) -> int:
    """The index of the segment to try among the first `spread` free ones.

    It is the oldest of those for which the fewest others rank first.

    me, others: the names of consumers, as they stand in leases.
    """
    ranks = _Ranks(me, others)
    best, fewest = 0, len(others) + 1
    for at in range(min(len(free), spread)):
        before = ranks.before(free[at])
        if before < fewest:
            best, fewest = at, before
        if not before:
            break
    return best


def own_segments(free: Iterable[str], me: str, others: Set[str]) -> list[str]:
    """The segments for which this consumer ranks before all others."""
    ranks = _Ranks(me, others)
    return [segment for segment in free if not ranks.before(segment)]


class _Ranks:
    """The order in which the consumers rank for each segment."""

    def __init__(self, me: str, others: Set[str]) -> None:
        self._mine, self._theirs = _salt(me), [_salt(other) for other in others]

    def before(self, segment: str) -> int:
        """The number of other consumers that rank before this one."""
        number = crc32(segment.encode())
        weight = _weight(number, self._mine)
        return sum(_weight(number, other) > weight for other in self._theirs)


def _salt(consumer: str) -> int:
    """A hash of the random end of a consumer's name, without its host and process."""
    return crc32(consumer.rpartition(" ")[2].encode())


def _weight(segment: int, salt: int) -> int:
    """The rank of a consumer for a segment: evenly spread, and independent for each pair."""
    return (segment ^ salt) * 0x9E3779B1 & 0xFFFFFFFF  # a prime near 2**32 / golden ratio (Fibonacci hashing)


def is_scarce(free: int, others: int) -> bool:
    """Whether the other consumers will soon have taken that many free segments."""
    return free <= 2 * others


def widened(spread: float, others: int) -> float:
    """The number of segments to choose among, after another consumer won a claim."""
    return min(2 * spread, MAX_SPREAD_PER_CONSUMER * (others + 1.0))


def narrowed(spread: float) -> float:
    """The number of segments to choose among, after this consumer won a claim."""
    return max(1.0, spread * 0.9)  # slowly: it takes seven won claims to undo one that was lost


def lengthened(rest: float) -> float:
    """The rest in seconds, after a scan that found nothing because of other consumers."""
    return min(1.5 * rest, MAX_REST)  # eight such scans in a row lead from the shortest to the longest rest


def shortened(rest: float, worked: float) -> float:
    """The rest in seconds, after `worked` seconds of work: a consumer that finds work is needed."""
    return max(MIN_REST, rest * exp2(-worked / REST_HALF_LIFE))


def rescan_from(names: QueueKeys, reached: str, now: float) -> str:
    """The key from which to list again, since creates may still be applied behind it: `reached`, or one before it."""
    start = encode_time(max(0.0, now - CREATE_SETTLE_SECONDS))
    return min(reached, names.segment(f"{start}{'0' * 9}"))
