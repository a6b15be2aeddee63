"""Errors of queues."""

from fray_coordinator.queue.errors import LeaseLost, UnknownLease

__all__ = ["LeaseLost", "UnknownLease"]
