"""Scans of a queue: what a listing of segments and leases says, which segment to claim, and when to scan again.

A lease sorts right behind its segment, so one listing shows both. A listing is old when it arrives: a segment without a
lease in it may be claimed, but only the claim decides. A claim that another consumer won costs two requests. So
consumers that know of each other share the segments by rendezvous hashing, and each begins with those for which it
ranks first. What falls to others it leaves to them as long as there is more to list; at the end of the queue it lists
anew before it tries what they have left. A consumer that scans in vain because of others rests longer, and one that
finds work rests less, so that as many stay awake as are needed.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from math import exp2
from zlib import crc32

from fray_layouts.key_encoding import encode_time
from fray_layouts.queue_keys import QueueKeys

MAX_SPREAD_PER_CONSUMER = 8
"""Segments, for each consumer, among which one chooses at most: how far items may overtake each other."""
MIN_REST, MAX_REST = 0.2, 5.0
"""Seconds between two scans of a consumer that finds nothing."""
REST_HALF_LIFE = 2.0
"""Seconds of work that halve a consumer's rest."""
MAX_LISTING_AGE = 0.3
"""Seconds after which a listing of few segments is old: others take one each in about that time."""
CREATE_SETTLE_SECONDS = 5.0
"""Seconds in which a create lands, as a rule: later names are listed again before a queue counts as empty. What lands
later still is found on the repair interval."""


@dataclass(slots=True)
class SegmentListing:
    """One listing, in order of the queue: segments without and with a lease, and leases without a segment."""

    free: list[str] = field(default_factory=list)
    leased: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)


def parse_listing(names: QueueKeys, keys: Iterable[str], before: str = "") -> SegmentListing:
    """The segments and leases of a listing. before: the last segment of the page before this one."""
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
    """Which of the first `spread` free segments to try: the oldest of those for which fewest others come first.

    me, others: consumers, as they call themselves in leases.
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
    """The segments for which no other consumer comes first."""
    ranks = _Ranks(me, others)
    return [segment for segment in free if not ranks.before(segment)]


class _Ranks:
    """The order of consumers for each segment."""

    def __init__(self, me: str, others: Set[str]) -> None:
        self._mine, self._theirs = _salt(me), [_salt(other) for other in others]

    def before(self, segment: str) -> int:
        """How many of the others come before this consumer."""
        number = crc32(segment.encode())
        weight = _weight(number, self._mine)
        return sum(_weight(number, other) > weight for other in self._theirs)


def _salt(consumer: str) -> int:
    """A hash of the random end of a consumer's name, not of its host and process."""
    return crc32(consumer.rpartition(" ")[2].encode())


def _weight(segment: int, salt: int) -> int:
    """The rank of a consumer for a segment: evenly spread, and independent for each pair."""
    return (segment ^ salt) * 0x9E3779B1 & 0xFFFFFFFF


def is_scarce(free: int, others: int) -> bool:
    """Whether others will have taken those free segments soon."""
    return free <= 2 * others


def widened(spread: float, others: int) -> float:
    """The number of segments to choose among, after a claim that another won."""
    return min(2 * spread, MAX_SPREAD_PER_CONSUMER * (others + 1.0))


def narrowed(spread: float) -> float:
    """The same after a claim that was won."""
    return max(1.0, spread * 0.9)


def lengthened(rest: float) -> float:
    """The rest in seconds, after a scan that was in vain because of others."""
    return min(1.5 * rest, MAX_REST)


def shortened(rest: float, worked: float) -> float:
    """The rest in seconds, after `worked` seconds of work: a consumer that finds work is needed."""
    return max(MIN_REST, rest * exp2(-worked / REST_HALF_LIFE))


def rescan_from(names: QueueKeys, reached: str, now: float) -> str:
    """The key after which creates may still be landing: `reached`, or one before it."""
    start = encode_time(max(0.0, now - CREATE_SETTLE_SECONDS))
    return min(reached, names.segment(f"{start}{'0' * 9}"))
