"""The engine of a queue: bytes in, leased bytes out. There are three, on files, in memory and over HTTP.

An engine's coroutines run in the process's background loop; `Queue` is their front. An engine never looks into an item,
so a server that passes items on unpickles nothing.
"""

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from fray_coordinator.queue.admin import Counts, Peeked
from fray_coordinator.queue.delivery import Delivery, EncodedItem
from fray_coordinator.queue.errors import LeaseLost, UnknownLease
from fray_layouts.errors import Permanent

__all__ = ["Counts", "Delivery", "EncodedItem", "LeaseLost", "Peeked", "QueueEngine", "UnknownLease", "Unreadable"]


class QueueEngine(Protocol):
    """The work behind a `Queue`.

    Every method may raise StoreUnavailable or a ConnectionError, and can then be called again. A method that is given
    a lease raises UnknownLease for one that was done or released before, ran out, or was never given.
    """

    async def push(self, items: Sequence[EncodedItem], batch: int | None) -> None:
        """Put items at the end; returns when they are there to stay. batch: items that are stored together."""

    def push_now(self, item: EncodedItem) -> Coroutine[Any, Any, None] | None:
        """`push` of one item, called in any thread. None: it is done; else what is left to be awaited."""

    async def take(self, count: int, timeout: float, wait: float, process: str = "") -> list[Delivery]:
        """Hand out up to `count` items, each for `timeout` seconds; wait up to `wait` seconds for the first.

        Args:
            process: that they are for, by a name that is its alone; "" is this one.
        """

    def take_now(self, timeout: float) -> Delivery | None:
        """The next item, called in any thread, if it is there without waiting; None: `take` knows."""

    def done_now(self, lease: str) -> bool:
        """Note, in any thread, that this item is done, to be written soon; False: call `done`."""

    async def done(self, leases: Sequence[str]) -> None:
        """Complete the items of these leases."""

    async def release(self, leases: Sequence[str], failed: bool) -> None:
        """Give the items of these leases back. failed: it counts towards the maximum of deliveries."""

    async def extend(self, lease: str, timeout: float) -> float:
        """Hold an item for `timeout` seconds from now at least; returns its new deadline."""

    async def give_up(self, lease: str, reason: str) -> None:
        """Make the item a dead letter."""

    async def counts(self) -> Counts:
        """The numbers of items by state."""

    async def peek(self, limit: int) -> list[Peeked]:
        """The oldest items that nobody has."""

    async def letters(self, limit: int) -> list[Peeked]:
        """The oldest dead letters."""

    async def redrive(self, limit: int | None) -> int:
        """Push dead letters again; returns how many."""

    async def purge(self) -> int:
        """Complete every item; returns how many."""

    async def close(self) -> None:
        """Give back what this process has."""


class Unreadable(Permanent, ValueError):
    """The item cannot be decoded here: import what it needs, or let `pop` make it a dead letter."""
