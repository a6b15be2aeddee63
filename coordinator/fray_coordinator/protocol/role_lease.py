"""The lease of a role that one process has at a time: of the reconciler, and of the scaler.

**Invariant.** Some process has the role soon, whoever dies; two that think they have it do no harm.

**Unsafe sequence.** A process reads the lease, is frozen for an hour, reads it unchanged, and takes it from a holder
that renewed it all the time, but for the last second.

**Why this cannot happen.** The lease ages by successful reads at most two intervals apart, between which it stood
still; one that cannot be read ages like any other, and is then replaced. And it protects nothing: every write of its
holder is conditional by itself, and every call to others is idempotent.
"""

from typing import Protocol

from fray_coordinator.protocol.failure_detection import MAX_GAP_INTERVALS

LEASE_INTERVALS = 3
"""Intervals for which the lease must stand still to be taken: its holder writes once in each, and may be late."""


UNREADABLE_HOLDER = "unreadable"
"""The holder of a lease whose record cannot be read. No agent has this id: one ends in a time."""


class RoleLease(Protocol):
    """A record that says who has the role, and how often that one has renewed it."""

    holder: str
    progress: int


def is_unchanged(before: RoleLease, now: RoleLease) -> bool:
    """Whether the holder has done nothing between two reads; others may have written into its record."""
    return (before.holder, before.progress) == (now.holder, now.progress)


def lease_age(age: float, unchanged: bool, gap: float | None, interval: float) -> float:
    """Seconds for which the lease has been seen to stand still, after one more successful read of it.

    Args:
        gap: seconds since the read before; None: this was the first.
        interval: at which its holder renews it.
    """
    if not unchanged:
        return 0.0
    if gap is None or gap > MAX_GAP_INTERVALS * interval:
        return age
    return age + gap


def may_take(lease: RoleLease | None, age: float, interval: float) -> bool:
    """Whether the lease is free or has not moved for long enough."""
    return lease is None or not lease.holder or age >= LEASE_INTERVALS * interval
