"""The interface of a queue's engine, which takes and leases encoded items. There are three: on files, in memory, HTTP.

An engine's coroutines run in the process's background loop; users call them through `Queue`. An engine never decodes an
item, so a server that passes items on unpickles nothing.
"""

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from fray_coordinator.queue.admin import Counts, Peeked
from fray_coordinator.queue.delivery import Delivery, EncodedItem
from fray_coordinator.queue.errors import LeaseLost, UnknownLease
from fray_layouts.errors import Permanent

__all__ = ["Counts", "Delivery", "EncodedItem", "LeaseLost", "Peeked", "QueueEngine", "UnknownLease", "Unreadable"]


class QueueEngine(Protocol):
    """Does the work of a `Queue`.

    Every method may raise StoreUnavailable or a ConnectionError, and can then be called again. A method that takes
    leases raises UnknownLease if a lease was done or released before, ran out, or never existed.
    """

    async def push(self, items: Sequence[EncodedItem], batch: int | None) -> None:
        """Put items at the end; returns when they are stored. batch: number of items that are stored together."""

    def push_now(self, item: EncodedItem) -> Coroutine[Any, Any, None] | None:
        """Push one item from any thread. Returns None if it is stored, or else a coroutine that does the rest."""

    async def take(self, count: int, timeout: float, wait: float, process: str = "") -> list[Delivery]:
        """Lease up to `count` items for `timeout` seconds each. Waits up to `wait` seconds for the first one.

        Args:
            process: a unique name of the process that they are for; "" is this process.
        """

    def take_now(self, timeout: float) -> Delivery | None:
        """Lease the next item from any thread, if that needs no wait. None: call `take`."""

    def done_now(self, lease: str) -> bool:
        """Note from any thread that an item is done; it is written soon. Returns False if `done` must be called."""

    async def done(self, leases: Sequence[str]) -> None:
        """Complete the items of these leases."""

    async def release(self, leases: Sequence[str], failed: bool) -> None:
        """Give back the items of these leases. failed: whether it counts towards the maximum of deliveries."""

    async def extend(self, lease: str, timeout: float) -> float:
        """Extend a lease to at least `timeout` seconds from now. Returns its new deadline."""

    async def give_up(self, lease: str, reason: str) -> None:
        """Make the item a dead letter."""

    async def counts(self) -> Counts:
        """The numbers of items by state."""

    async def peek(self, limit: int) -> list[Peeked]:
        """The oldest items that are not leased."""

    async def letters(self, limit: int) -> list[Peeked]:
        """The oldest dead letters."""

    async def redrive(self, limit: int | None) -> int:
        """Push dead letters again, and return their number."""

    async def purge(self) -> int:
        """Complete every item, and return their number."""

    async def close(self) -> None:
        """Give back the items that this process has leased."""


class Unreadable(Permanent, ValueError):
    """The item cannot be decoded here: import what it needs, or let `pop` make it a dead letter."""
