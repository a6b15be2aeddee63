"""The leases of other consumers that one consumer knows, and when reading each of them is worth a request."""

from collections.abc import Iterable
from dataclasses import dataclass

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
