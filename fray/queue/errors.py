"""Errors of queues."""

from fray_coordinator.queue.errors import LeaseLost, UnknownLease
from fray_layouts.errors import Permanent

__all__ = ["LeaseLost", "UnknownLease", "Unreadable"]


class Unreadable(Permanent, ValueError):
    """The item cannot be decoded here: import what it needs, or let `pop` make it a dead letter."""
