"""Contention among the consumers of a queue: whose leases one of them knows, and whether they leave anything to do."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fray_coordinator.protocol import queue_segments as scan
from fray_coordinator.queue.open_queue import OpenQueue
from fray_coordinator.store.records import Stored
from fray_layouts.queue_records import QueueLease

FIRST_READ_DELAY = 10.0
"""Seconds until a lease that was seen on a bucket is read for the first time. Most leases are finished by then, and one
listing shows that for many. A new consumer reads at once the leases that were there before it."""
MAX_LEASE_READS = 32
"""Leases of others that one scan reads, so that a scan ends soon however many consumers there are."""

BEHIND_ALL = "\U0010ffff"
"""Sorts behind every name."""


@dataclass(slots=True)
class WatchedLease:
    """The lease of another consumer.

    Attributes:
        since: when this version was first seen.
        due: when to read it next.
        is_left: it may have been written before this consumer began.
    """

    since: float
    due: float
    lease: Stored[QueueLease] | None = None
    is_left: bool = False


class WatchedLeases:
    """The watched leases by segment, and the segments that need none because they are finished.

    All times are those of `Clock.boottime`.
    """

    def __init__(self) -> None:
        self._watched: dict[str, WatchedLease] = {}
        self._finished: set[str] = set()
        self._released: set[str] = set()

    def __contains__(self, segment: str) -> bool:
        """Whether the segment is watched, or finished."""
        return segment in self._watched or segment in self._finished

    def watch(self, segment: str, lease: WatchedLease) -> None:
        self._watched[segment] = lease

    def take(self, segment: str) -> WatchedLease | None:
        """Stop watching the segment's lease and return it; None if it is not watched."""
        return self._watched.pop(segment, None)

    def finished(self, *segments: str) -> None:
        """Ignore these segments until `forget_finished`."""
        self._finished.update(segments)
        for segment in segments:
            self._watched.pop(segment, None)

    def is_finished(self, segment: str) -> bool:
        return segment in self._finished

    def forget_finished(self) -> None:
        self._finished = set()

    def released(self, segment: str, lease: Stored[QueueLease], now: float) -> None:
        """Note that this process released the segment."""
        self._watched[segment] = WatchedLease(now, now, lease)
        self._released.add(segment)

    @property
    def first_released(self) -> str:
        """The oldest segment that this process released since `take_due` was called; if none, a name behind all."""
        return min(self._released, default=BEHIND_ALL)

    def take_due(self, now: float) -> list[str]:
        """The segments whose lease is to be read now, oldest first."""
        self._released.clear()
        return sorted(segment for segment, watched in self._watched.items() if watched.due <= now)

    def any_due(self, now: float) -> bool:
        return any(watched.due <= now for watched in self._watched.values())

    def make_due(self) -> None:
        """Have the oldest leases read now."""
        for segment in sorted(self._watched)[:MAX_LEASE_READS]:
            self._watched[segment].due = 0.0

    def make_left_due(self) -> bool:
        """Have the leases that others left read now, as far as they were never read; whether there are any."""
        unread = [watched for watched in self._watched.values() if watched.is_left and watched.lease is None]
        for watched in unread:
            watched.due = 0.0
        return bool(unread)

    def forget(self, segments: Iterable[str]) -> None:
        for segment in segments:
            self._watched.pop(segment, None)


def first_read_at(now: float) -> float:
    """When a lease seen now is first read: together with others, since one listing shows which of them are finished."""
    return (now // FIRST_READ_DELAY + 2) * FIRST_READ_DELAY


COMPETITOR_MEMORY = 60.0
"""Seconds for which a consumer that won a claim counts as one of the others. A working consumer claims more often."""


class Contention:
    """What one consumer knows of the others, from the claims that they won.

    Attributes:
        rest: seconds until another scan of a bucket is worth its requests.
    """

    def __init__(self, queue: OpenQueue) -> None:
        self.rest = scan.MIN_REST
        self._me = queue.holder
        self._clock = queue.core.clock
        self._seen: dict[str, float] = {}
        self._spread = 1.0
        self._works = False
        self._scanned_at = 0.0

    def pick(self, free: Sequence[str], picked: int) -> int:
        """The index of the free segment to claim. picked: how many of the listing this consumer has picked already."""
        if not self._seen or not (others := self._others()):
            return 0
        return scan.pick_segment(free, self._me, others, max(int(self._spread), (len(others) + 1) * (picked + 1)))

    def own(self, free: Sequence[str]) -> Sequence[str]:
        """The free segments that fall to this consumer."""
        if not self._seen or not (others := self._others()):
            return free
        return scan.own_segments(free, self._me, others)

    def won_claims(self) -> None:
        """Note that this consumer won every claim that it tried."""
        self._spread = scan.narrowed(self._spread)

    def lost_claims(self, holders: Sequence[str]) -> None:
        """Note that these consumers won claims instead; "" stands for nobody."""
        self._seen.update(dict.fromkeys(filter(None, holders), self._clock.boottime()))
        self._spread = scan.widened(self._spread, len(self._others()))

    def others_take(self, free: int) -> bool:
        """Whether the other consumers will soon have taken that many free segments."""
        return scan.is_scarce(free, len(self._others()))

    def scanned_in_vain(self) -> None:
        """Note that a scan found nothing because of the other consumers."""
        self.rest = scan.lengthened(self.rest)

    def found_work(self) -> None:
        """Note that a scan found work, which lasts until the next scan."""
        self._works = True

    def begin_scan(self) -> None:
        """Note that a scan begins. If the last one found work, the time since then was work."""
        now = self._clock.boottime()
        if self._works:
            self.rest = scan.shortened(self.rest, now - self._scanned_at)
        self._works, self._scanned_at = False, now

    def _others(self) -> set[str]:
        now = self._clock.boottime()
        self._seen = {holder: at for holder, at in self._seen.items() if now < at + COMPETITOR_MEMORY}
        return self._seen.keys() - {self._me}
