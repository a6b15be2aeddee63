"""What can go wrong with a queue; the docstring says what the caller should do."""

from __future__ import annotations

from fray_layouts.errors import Permanent


class UnknownLease(Permanent, ValueError):
    """The lease was done or released before, ran out, or is not of this queue; nothing was changed."""


class LeaseLost(UnknownLease):
    """The lease ran out and another has the item, who deals with it now; nothing was changed."""


class QueueNotFound(Permanent):
    """There is no such queue; `fray queue ls` lists those that have a name, and a push makes one."""
