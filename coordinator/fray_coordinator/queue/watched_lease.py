"""A watched lease: the lease of another consumer, and when reading it is worth a request."""

from dataclasses import dataclass

from fray_coordinator.store.records import Stored
from fray_layouts.queue_records import QueueLease

FIRST_READ_DELAY = 10.0
"""Seconds until a lease that was seen on a bucket is read for the first time. Most leases are finished by then, and one
listing shows that for many. A new consumer reads at once the leases that were there before it."""


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


def first_read_at(now: float) -> float:
    """When a lease seen now is first read: together with others, since one listing shows which of them are finished."""
    return (now // FIRST_READ_DELAY + 2) * FIRST_READ_DELAY
