"""Errors of queues."""

from fray_coordinator.queue.errors import LeaseLost, UnknownLease
from fray_layouts.errors import Permanent

__all__ = ["LeaseLost", "UnknownLease", "Unreadable"]


class Unreadable(Permanent, ValueError):
    """This item cannot be decoded in this process."""
