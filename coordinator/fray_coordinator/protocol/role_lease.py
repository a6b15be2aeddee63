"""The lease of a role that one process has at a time: that of the reconciler, and that of the scaler.

**Invariant.** Some process soon has the role, whoever dies; two that both believe that they have it do no harm.

**Unsafe sequence.**

1. Process B reads the lease and is frozen for an hour. Holder A renews the lease all the time.
2. B wakes, reads the lease in the second before A's next renewal, and finds it as old as the hour it slept.
3. B takes the lease from a live holder.

**Why this cannot happen.** The lease ages only between two successful reads that are at most two intervals apart and
show the same state. A lease that cannot be read ages in the same way, and is then replaced. And the lease protects
nothing: every write of its holder is conditional by itself, and every call to another system is idempotent.
"""

from typing import Protocol

from fray_coordinator.protocol.failure_detection import MAX_GAP_INTERVALS

LEASE_INTERVALS = 3
"""Intervals for which the lease must stand still before another process may take it. The holder writes once in each,
and may be late."""


UNREADABLE_HOLDER = "unreadable"
"""The holder of a lease whose record cannot be read. No agent has this id, since every agent's id ends in a time."""


class RoleLease(Protocol):
    """A record that says who has the role, and how often that holder has renewed it."""

    holder: str
    progress: int


def is_unchanged(before: RoleLease, now: RoleLease) -> bool:
    """Whether the holder has written nothing between two reads. Others may have written into its record."""
    return (before.holder, before.progress) == (now.holder, now.progress)


def lease_age(age: float, unchanged: bool, gap: float | None, interval: float) -> float:
    """Seconds for which the lease has been seen to stand still, after one more successful read of it.

    Args:
        age: the result after the read before.
        unchanged: the holder has written nothing since that read.
        gap: seconds since that read; None if this is the first.
        interval: seconds between two renewals by the holder.
    """
    if not unchanged:
        return 0.0
    if gap is None or gap > MAX_GAP_INTERVALS * interval:
        return age
    return age + gap


def may_take(lease: RoleLease | None, age: float, interval: float) -> bool:
    """Whether the lease is free, or has stood still for long enough."""
    return lease is None or not lease.holder or age >= LEASE_INTERVALS * interval
