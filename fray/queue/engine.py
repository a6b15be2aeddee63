"""What is behind a queue: bytes in, leased bytes out. Files, memory and HTTP are three engines; `Queue` is their front.

An engine's coroutines run in the process's background loop. It never looks into an item, so a server that passes items
on unpickles nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fray_coordinator.queue.admin import Counts, Peeked
from fray_coordinator.queue.delivery import Delivery, EncodedItem

__all__ = ["Counts", "Delivery", "EncodedItem", "Peeked", "QueueEngine"]


class QueueEngine(Protocol):
    """Every method may raise `StoreUnavailable` (or a ConnectionError) and can then be called again.

    What names a lease raises `UnknownLease` for one that was done or released before, ran out, or was never given.
    """

    async def push(self, items: Sequence[EncodedItem], batch: int | None) -> None:
        """Returns when the items are there to stay."""
        ...

    async def take(self, count: int, timeout: float, wait: float, process: str = "") -> list[Delivery]:
        """Up to `count` items; waits up to `wait` seconds for the first.

        Args:
            process: which they are for, by any name that is its alone; "" is this one.
        """
        ...

    async def done(self, leases: Sequence[str]) -> None: ...

    async def release(self, leases: Sequence[str], failed: bool) -> None: ...

    async def extend(self, lease: str, timeout: float) -> float:
        """The new deadline."""
        ...

    async def bury(self, lease: str, reason: str) -> None:
        """Make the item a dead letter."""
        ...

    async def counts(self) -> Counts: ...

    async def peek(self, limit: int) -> list[Peeked]:
        """The oldest items that nobody has."""
        ...

    async def letters(self, limit: int) -> list[Peeked]:
        """The oldest dead letters."""
        ...

    async def redrive(self, limit: int | None) -> int:
        """Push dead letters again; how many it were."""
        ...

    async def purge(self) -> int:
        """Complete everything; how many it were."""
        ...

    async def close(self) -> None: ...
