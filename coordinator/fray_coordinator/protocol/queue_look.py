"""What a listing of segments and leases tells, and which segment to try.

A lease sorts right behind its segment, so one listing shows both. A listing is old when it arrives: that a segment had
no lease is a reason to try, not to hold it. Consumers that all tried the oldest would beat each other to it; so each
draws among the first few, as many as there seem to be consumers, and draws wider each time that it was beaten.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fray_layouts.names import Queues, encode_time

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


def pick(candidates: int, spread: float, drawn: float) -> int:
    """Which of the candidates to try. drawn: evenly from [0, 1)."""
    return int(drawn * min(candidates, max(1.0, spread)))


def wider(spread: float) -> float:
    """After being beaten."""
    return min(2 * spread, 1000.0)


def narrower(spread: float, consumers: int) -> float:
    """After winning, with so many other consumers in sight."""
    return max(1.0 + consumers, spread * 0.9)


def unsettled(names: Queues, reached: str, now: float) -> str:
    """The key after which creates may still be landing: `reached`, or earlier."""
    start = encode_time(max(0.0, now - SETTLED))
    return min(reached, names.segment(f"{start}{'0' * 9}"))
