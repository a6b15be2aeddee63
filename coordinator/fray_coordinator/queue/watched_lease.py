"""A lease of another consumer, and when it is worth a read."""

from dataclasses import dataclass

from fray_coordinator.store.records import Stored
from fray_layouts.queue_records import QueueLease

FIRST_READ_DELAY = 10.0
"""Seconds until a lease that was seen on a bucket is read for the first time; a new consumer reads at once what was
there before it. Most leases are finished by then, and one listing says so of many."""


@dataclass(slots=True)
class WatchedLease:
    """A lease of another consumer.

    Attributes:
        since: when this version was first seen.
        due: when to read it (again).
        is_left: it may have been written before this consumer came.
    """

    since: float
    due: float
    lease: Stored[QueueLease] | None = None
    is_left: bool = False


def first_read_at(now: float) -> float:
    """When a lease seen now is first read: together with others, of which one listing says what is finished."""
    return (now // FIRST_READ_DELAY + 2) * FIRST_READ_DELAY
