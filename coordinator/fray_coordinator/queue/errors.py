"""Errors of queues; each docstring says what the caller should do."""

from fray_layouts.errors import Permanent
from fray_layouts.wording import first_names

MAX_NAMED_LEASES = 3
"""Leases that a message names one by one. More would make the message of a batch of hundreds unreadable."""


class UnknownLease(Permanent, ValueError):
    """The lease was done or released before, ran out, was purged, or is not of this queue; its item is unchanged."""

    def __init__(self, *leases: str) -> None:
        """leases: the ids of the unknown leases. The other leases of the same call are done or released."""
        self.leases = leases
        super().__init__(*leases)

    def __str__(self) -> str:
        named = first_names(self.leases, MAX_NAMED_LEASES)
        return f"lease {named}: {self.__doc__}" if named else f"{self.__doc__}"


class LeaseLost(UnknownLease):
    """The lease ran out and another consumer has or had the item, or the queue was purged; the item is unchanged."""


class QueueNotFound(Permanent):
    """There is no such queue; `fray queue ls` lists those that have a name, and a push makes one."""
