"""What a listing of segments and leases tells, and which segment to try.

A lease sorts right behind its segment, so one listing shows both. A listing is old when it arrives: that a segment had
no lease is a reason to try, not to hold it. Consumers that all tried the oldest would beat each other to it; so among
the first few each tries those that fall to it by their names, as far as they know each other from their leases; and it
draws among ever more each time that it was beaten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from zlib import crc32

from fray_layouts.queue_names import Queues
from fray_layouts.words import encode_time

SETTLED = 5.0
"""Seconds after which a create has landed, as a rule: later names are looked at again before a queue counts as empty.
What lands later still is found on the repair interval."""


@dataclass(slots=True)
class Sight:
    """One listing: segments without and with a lease, leases without a segment, all in order of the queue."""

    free: list[str] = field(default_factory=list)
    leased: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)


def seen(names: Queues, keys: Iterable[str], before: str = "") -> Sight:
    """Take a listing apart. before: the last segment of the page before this one."""
    sight = Sight()
    last = before
    for segment, is_lease in filter(None, map(names.parse, keys)):
        if not is_lease:
            sight.free.append(segment)
            last = segment
        elif segment != last:
            sight.orphans.append(segment)
        else:
            sight.leased.append(segment)
            if sight.free and sight.free[-1] == segment:
                sight.free.pop()
    return sight


def pick(free: Sequence[str], me: str, others: Set[str], spread: int, drawn: float, fresh: bool) -> int | None:
    """Which of the free segments to try; None: better list again first.

    Args:
        me, others: consumers, as they call themselves in leases.
        spread: among how many of the first, so that the order is kept up to that.
        drawn: evenly from [0, 1).
        fresh: nothing was tried since the listing; what falls to others is theirs soon.
    """
    if not others:
        return 0
    crowd = sorted({me, *others})
    share, window = crowd.index(me), min(len(free), spread)
    for at in range(window):
        if crc32(free[at].encode()) % len(crowd) == share:
            return at
    return int(drawn * window) if fresh else None


def wider(spread: float) -> float:
    """After being beaten."""
    return min(2 * spread, 1000.0)


def narrower(spread: float) -> float:
    """After winning."""
    return max(1.0, spread * 0.9)


def unsettled(names: Queues, reached: str, now: float) -> str:
    """The key after which creates may still be landing: `reached`, or earlier."""
    start = encode_time(max(0.0, now - SETTLED))
    return min(reached, names.segment(f"{start}{'0' * 9}"))
