"""What every queue offers: at least once, in order, by leases.

A queue hands an item out under a lease. `done` ends it for good; `release`, an exception in the lease's `with` block,
or a lease that runs out, brings the item back before all others. An item that fails again and again becomes a dead
letter.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from fray.queue import codec
from fray.queue.engine import Counts, Engine, Peeked, Taken
from fray.queue.errors import UnknownLease
from fray.queue.lease import Lease
from fray_coordinator import sync
from fray_coordinator.errors import StoreUnavailable
from fray_layouts.errors import InvalidInput

T = TypeVar("T")
Leases = Lease[T] | Sequence[Lease[T]]
KEPT_SHARE = 0.3
"""Of what is left of a lease: how long until it is renewed in the background."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An item that was given up.

    Attributes:
        item: what was pushed; None if it cannot be read.
        reason: why.
        deliveries: how often it had been handed out.
    """

    item: Any
    reason: str
    deliveries: int


class Queue(Generic[T]):
    """The synchronous methods; `aio` has the same ones as coroutines, for any event loop.

    Args:
        engine: what is behind it, opened in each process when it is first used.
        encoding: "pickle" (whatever cloudpickle takes), or "json" for consumers in other languages.

    Every method may raise `StoreUnavailable` when the storage (or the server) does not answer; then call it again.
    """

    def __init__(self, engine: sync.PerProcess[Engine], encoding: str = "pickle") -> None:
        if encoding not in codec.ENCODINGS:
            raise InvalidInput("encoding", encoding, f"use one of {', '.join(codec.ENCODINGS)}")
        self._engine = engine
        self._encoding = encoding

    @property
    def aio(self) -> AsyncQueue[T]:
        """The same queue for asyncio."""
        return AsyncQueue(self)

    def push(self, item: T) -> None:
        """Put an item at the end; when this returns it is there to stay.

        Raises:
            InvalidInput: the item cannot be encoded.
        """
        sync.run(self._push([item], 1))

    def push_many(self, items: Iterable[T], batch: int | None = None) -> None:
        """Put items at the end, in this order. If it raises, some of them may be in the queue.

        Args:
            batch: so many are stored together and go to one consumer at a time; fewer requests, coarser sharing. By
                default at least 64 batches of at most 250 items.

        Raises:
            InvalidInput: an item cannot be encoded; nothing was pushed.
        """
        sync.run(self._push(items, batch))

    def peek(self) -> T | None:
        """The item that `pop` would give, which stays where it is; None if there is none."""
        found: T | None = self._decoded(sync.run(self._peek(1)))
        return found

    def pop(self, lease_timeout: float = 60.0, wait: float = 0.0) -> Lease[T] | None:
        """The oldest item that nobody has, items that came back first; None if there is none.

        Args:
            lease_timeout: seconds until the item comes back unless it is done, released or extended before; at least
                0.4 of them are left when this returns.
            wait: seconds to wait for an item.
        """
        return next(iter(self.pop_many(1, lease_timeout, wait)), None)

    def pop_many(self, count: int, lease_timeout: float = 60.0, wait: float = 0.0) -> list[Lease[T]]:
        """Up to `count` items, each under a lease of its own; waits for the first only."""
        _check_pop(count, lease_timeout)
        while True:
            taken = sync.run(self._take(count, lease_timeout, wait))
            leases, unreadable = self._leases(taken)
            for lease, reason in unreadable:
                sync.run(self._bury(lease, reason))
            if leases or not taken:
                return leases

    def done(self, lease: Leases[T]) -> None:
        """The work is done: the item never comes back. Returns when that has been written.

        Args:
            lease: one, or several, which is quicker.

        Raises:
            UnknownLease: it was done or released before, ran out (LeaseLost: and another has the item), or is not of
                this queue.
        """
        sync.run(self._done(_listed(lease)))

    def release(self, lease: Leases[T], failed: bool = True) -> None:
        """Give the item back; it comes before all others.

        Args:
            failed: this counts towards the maximum of deliveries, after which the item is a dead letter.

        Raises as `done` does.
        """
        sync.run(self._release(_listed(lease), failed))

    def extend(self, lease: Lease[T], seconds: float) -> None:
        """Keep the item for at least `seconds` from now. Raises as `done` does."""
        sync.run(self._extend(lease, seconds))

    def keep(self, lease: Lease[T]) -> None:
        """Renew the lease in the background until it is done, released or lost."""
        sync.start(self._keep(lease))

    def pending(self) -> int:
        """How many items are leased; items that were stored together count together unless they are this consumer's."""
        return self.counts().pending

    def size(self) -> int:
        """How many items nobody has."""
        return self.counts().available

    def counts(self) -> Counts:
        """Both at once, and the age of the oldest."""
        return sync.run(self._counts())

    def letters(self, limit: int = 100) -> list[DeadLetter]:
        """The oldest dead letters; they stay where they are."""
        return [_letter(peeked) for peeked in sync.run(self._letters(limit))]

    def redrive(self, limit: int | None = None) -> int:
        """Push dead letters again, all of them or the oldest so many; how many it were."""
        return sync.run(self._redrive(limit))

    def purge(self) -> int:
        """Complete every item, also those that somebody has; how many it were."""
        return sync.run(self._purge())

    def __iter__(self) -> Iterator[Lease[T]]:
        """Leases, until there is nothing to be had."""
        while (lease := self.pop()) is not None:
            yield lease

    def close(self) -> None:
        """Give back what this process has; using the queue again opens it anew."""
        sync.run(self._close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # --- in the background loop

    async def _push(self, items: Iterable[T], batch: int | None) -> None:
        if batch is not None and batch < 1:
            raise InvalidInput("batch", batch, "use at least 1")
        encoded = codec.encode(items, self._encoding)
        if encoded:
            await (await self._engine.get()).push(encoded, batch)

    async def _peek(self, limit: int) -> list[Any]:
        return [peeked.item for peeked in await (await self._engine.get()).peek(limit)]

    async def _take(self, count: int, timeout: float, wait: float) -> list[Taken]:
        return await (await self._engine.get()).take(count, timeout, wait)

    async def _bury(self, lease: str, reason: str) -> None:
        with suppress(UnknownLease):
            await (await self._engine.get()).bury(lease, reason)

    async def _done(self, leases: list[Lease[T]]) -> None:
        await (await self._engine.get()).done([lease.lease_id for lease in leases])
        _end(leases)

    async def _release(self, leases: list[Lease[T]], failed: bool) -> None:
        await (await self._engine.get()).release([lease.lease_id for lease in leases], failed)
        _end(leases)

    async def _extend(self, lease: Lease[T], seconds: float) -> None:
        lease.deadline = await (await self._engine.get()).extend(lease.lease_id, seconds)

    async def _keep(self, lease: Lease[T]) -> None:
        length = lease.deadline - lease.timestamp
        with suppress(UnknownLease):
            while not lease.ended:
                await asyncio.sleep(length * KEPT_SHARE)
                with suppress(StoreUnavailable, ConnectionError):
                    await self._extend(lease, length)

    async def _counts(self) -> Counts:
        return await (await self._engine.get()).counts()

    async def _letters(self, limit: int) -> list[Peeked]:
        return await (await self._engine.get()).letters(limit)

    async def _redrive(self, limit: int | None) -> int:
        return await (await self._engine.get()).redrive(limit)

    async def _purge(self) -> int:
        return await (await self._engine.get()).purge()

    async def _close(self) -> None:
        engine = await self._engine.take()
        if engine is not None:
            await engine.close()

    # --- in the caller's thread: an item's own code may do anything, and take its time

    def _leases(self, taken: Sequence[Taken]) -> tuple[list[Lease[T]], list[tuple[str, str]]]:
        """The leases with their items; and for items that cannot be decoded the lease's id and the reason."""
        leases: list[Lease[T]] = []
        unreadable: list[tuple[str, str]] = []
        for one in taken:
            try:
                item: T = codec.decode(one.item)
            except Exception as error:
                unreadable.append((one.id, f"it cannot be read: {type(error).__name__}: {error}"))
            else:
                leases.append(Lease(item, one.id, one.taken_at, one.number, one.deadline, self))
        return leases, unreadable

    def _decoded(self, items: list[Any]) -> Any:
        return codec.decode(items[0]) if items else None


class AsyncQueue(Generic[T]):
    """The methods of `Queue` as coroutines. What a cancelled `pop` took comes back when its lease runs out."""

    def __init__(self, queue: Queue[T]) -> None:
        self._queue = queue

    async def push(self, item: T) -> None:
        await sync.awaited(self._queue._push([item], 1))

    async def push_many(self, items: Iterable[T], batch: int | None = None) -> None:
        await sync.awaited(self._queue._push(items, batch))

    async def peek(self) -> T | None:
        found: T | None = self._queue._decoded(await sync.awaited(self._queue._peek(1)))
        return found

    async def pop(self, lease_timeout: float = 60.0, wait: float = 0.0) -> Lease[T] | None:
        return next(iter(await self.pop_many(1, lease_timeout, wait)), None)

    async def pop_many(self, count: int, lease_timeout: float = 60.0, wait: float = 0.0) -> list[Lease[T]]:
        _check_pop(count, lease_timeout)
        while True:
            taken = await sync.awaited(self._queue._take(count, lease_timeout, wait))
            leases, unreadable = self._queue._leases(taken)
            for lease, reason in unreadable:
                await sync.awaited(self._queue._bury(lease, reason))
            if leases or not taken:
                return leases

    async def done(self, lease: Leases[T]) -> None:
        await sync.awaited(self._queue._done(_listed(lease)))

    async def release(self, lease: Leases[T], failed: bool = True) -> None:
        await sync.awaited(self._queue._release(_listed(lease), failed))

    async def extend(self, lease: Lease[T], seconds: float) -> None:
        await sync.awaited(self._queue._extend(lease, seconds))

    async def pending(self) -> int:
        return (await self.counts()).pending

    async def size(self) -> int:
        return (await self.counts()).available

    async def counts(self) -> Counts:
        return await sync.awaited(self._queue._counts())

    async def letters(self, limit: int = 100) -> list[DeadLetter]:
        return [_letter(peeked) for peeked in await sync.awaited(self._queue._letters(limit))]

    async def redrive(self, limit: int | None = None) -> int:
        return await sync.awaited(self._queue._redrive(limit))

    async def purge(self) -> int:
        return await sync.awaited(self._queue._purge())

    async def __aiter__(self) -> AsyncIterator[Lease[T]]:
        while (lease := await self.pop()) is not None:
            yield lease

    async def close(self) -> None:
        await sync.awaited(self._queue._close())


def _check_pop(count: int, lease_timeout: float) -> None:
    if count < 1:
        raise InvalidInput("count", count, "use at least 1")
    if not 0 < lease_timeout < float("inf"):
        raise InvalidInput("lease_timeout", lease_timeout, "use a number of seconds above 0")


def _listed(lease: Leases[T]) -> list[Lease[T]]:
    return [lease] if isinstance(lease, Lease) else list(lease)


def _end(leases: Iterable[Lease[Any]]) -> None:
    for lease in leases:
        lease.ended = True


def _letter(peeked: Peeked) -> DeadLetter:
    reason, deliveries = (peeked.letter.reason, peeked.letter.deliveries) if peeked.letter else ("", 0)
    try:
        return DeadLetter(codec.decode(peeked.item), reason, deliveries)
    except Exception:
        return DeadLetter(None, reason, deliveries)
