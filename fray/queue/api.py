"""The interface of every queue: at least once, in order, under leases.

A queue hands an item out under a lease. `done` ends the item for good. `release`, an exception in the lease's `with`
block, or a lease that runs out brings the item back, before all others. An item that fails again and again becomes a
dead letter.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral, Real
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from fray import sync
from fray.display import Shown, ShownTable
from fray.queue import codec
from fray.queue.engine import Counts, Delivery, Peeked, QueueEngine, UnknownLease, Unreadable
from fray.queue.lease import Lease
from fray_coordinator.errors import StoreError
from fray_coordinator.per_loop import PerLoop
from fray_layouts.errors import InvalidInput

R = TypeVar("R")

if TYPE_CHECKING:  # as in Python 3.13, so that `FileQueue("work")` needs no annotation
    import typing_extensions

    T = typing_extensions.TypeVar("T", default=Any)
else:
    T = TypeVar("T")

Leases = Lease[T] | Sequence[Lease[T]]
RENEWAL_SHARE = 0.3
"""The part of a lease's length after which it is renewed in the background, so that two renewals may fail."""


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


class Queue(Shown, Generic[T]):
    """A queue with methods that block; `aio` has the same ones as coroutines, for any event loop.

    Args:
        engine: does the work; opened in each process when it is first used.
        encoding: "pickle" (whatever cloudpickle takes), or "json" for consumers in other languages.

    Every method may raise `StoreUnavailable` when the storage (or the server) does not answer; then call it again.
    """

    def __init__(self, engine: PerLoop[QueueEngine], encoding: str = "pickle") -> None:
        if encoding not in codec.ENCODINGS:
            raise InvalidInput("encoding", encoding, f"use one of {', '.join(codec.ENCODINGS)}")
        self._engine = engine
        self._encoding = encoding

    @property
    def _blocking(self) -> AsyncQueue[T]:
        return AsyncQueue(self, sync.blocking)

    @property
    def aio(self) -> AsyncQueue[T]:
        """The same queue with coroutines for methods, which never block the caller's event loop.

        lease = await queue.aio.pop(wait=30)
        async with lease: ...
        """
        return AsyncQueue(self)

    def push(self, item: T) -> None:
        """Put an item at the end; when this returns it is there to stay.

        Raises:
            InvalidInput: the item cannot be encoded.
        """
        engine = self._engine.opened()
        if engine is None:
            sync.run_unsuspended(self._blocking.push(item))
        elif (rest := engine.push_now(codec.encode([item], self._encoding)[0])) is not None:
            sync.run(rest)

    def push_many(self, items: Iterable[T], batch: int | None = None) -> None:
        """Put items at the end, in this order. If it raises, some of them may be in the queue.

        Args:
            batch: so many are stored together and go to one consumer at a time; fewer requests, coarser sharing. By
                default at least 64 batches of at most 250 items.

        Raises:
            InvalidInput: an item cannot be encoded; nothing was pushed.
        """
        sync.run_unsuspended(self._blocking.push_many(items, batch))

    def peek(self) -> T | None:
        """The oldest item that nobody has, which stays where it is; None if there is none.

        Another consumer may take it at any moment: to work on an item, `pop` it.

        Raises:
            Unreadable: it cannot be decoded here. Import what it needs, or let `pop` make it a dead letter.
        """
        return sync.run_unsuspended(self._blocking.peek())

    def pop(self, lease_timeout: float = 60.0, wait: float = 0.0) -> Lease[T] | None:
        """The oldest item that nobody has, items that came back first; None if there is none.

        Args:
            lease_timeout: seconds until the item comes back unless it is done, released or extended before; at least
                0.4 of them are left when this returns.
            wait: seconds to wait for an item.
        """
        _wait(wait)
        engine = self._engine.opened()
        if engine is not None and (taken := engine.take_now(lease_timeout)) is not None:
            lease = sync.run_unsuspended(self._blocking._leased(taken))
            if lease is not None:
                return lease
        return sync.run_unsuspended(self._blocking.pop(lease_timeout, wait))

    def pop_many(self, count: int, lease_timeout: float = 60.0, wait: float = 0.0) -> list[Lease[T]]:
        """Up to `count` items, each under a lease of its own, as `pop` gives one; [] if there is none.

        Quicker than as many calls of `pop`, as `done` of many leases is.

        Args:
            count: at least 1. Fewer come if fewer are free: only the first is waited for.
            lease_timeout, wait: as for `pop`.
        """
        return sync.run_unsuspended(self._blocking.pop_many(count, lease_timeout, wait))

    def done(self, lease: Leases[T]) -> None:
        """The work is done: the item never comes back.

        Returns when that is stored, or noted to be stored within a moment; `FileQueue` says which.

        Args:
            lease: one, or several, which is quicker.

        Raises:
            UnknownLease: it was done or released before, ran out (LeaseLost: and another has the item), or is not of
                this queue. It names those of which this is so (`leases`); the others are done.
        """
        engine = self._engine.opened()
        if engine is not None and isinstance(lease, Lease) and engine.done_now([lease.lease_id]):
            lease.ended = True
            return
        sync.run_unsuspended(self._blocking.done(lease))

    def release(self, lease: Leases[T], failed: bool = True) -> None:
        """Give the item back; it comes before all others.

        Args:
            failed: this counts towards the maximum of deliveries, after which the item is a dead letter.

        Raises as `done` does.
        """
        sync.run_unsuspended(self._blocking.release(lease, failed))

    def extend(self, lease: Lease[T], seconds: float) -> None:
        """Keep the item for at least `seconds` from now on; the lease's `deadline` moves.

        It is never shortened. For work of unknown length, `keep` does this again and again.

        Raises as `done` does.
        """
        sync.run_unsuspended(self._blocking.extend(lease, seconds))

    def keep(self, lease: Lease[T]) -> None:
        """Renew a lease in the background until it is done, released or lost; returns at once.

        A lease that cannot be renewed runs out: then `done` raises LeaseLost or UnknownLease.
        """
        sync.run_unsuspended(self._blocking.keep(lease))

    def pending(self) -> int:
        """The number of items that are leased, by whichever consumer; reads the storage.

        Of items that were pushed in one batch, and that another process has, all that are not done count as leased.
        """
        return sync.run_unsuspended(self._blocking.pending())

    def size(self) -> int:
        """The number of items that nobody has leased; reads the storage.

        Dead letters do not count. Others push and pop meanwhile, so that the number is one of a moment ago.
        """
        return sync.run_unsuspended(self._blocking.size())

    def counts(self) -> Counts:
        """The numbers of items by state, and when the oldest was pushed (see `Counts`), read in one go.

        `size` and `pending` are parts of it: who needs both asks for this.
        """
        return sync.run_unsuspended(self._blocking.counts())

    def letters(self, limit: int = 100) -> list[DeadLetter]:
        """The oldest dead letters, at most `limit`: items that were given up, and why. They stay where they are.

        An item is given up after `max_deliveries` failures, or when it cannot be decoded. `redrive` pushes it again.
        """
        return sync.run_unsuspended(self._blocking.letters(limit))

    def redrive(self, limit: int | None = None) -> int:
        """Push dead letters again, the oldest first, and return how many; their deliveries are counted anew.

        Args:
            limit: how many at most; None takes all.
        """
        return sync.run_unsuspended(self._blocking.redrive(limit))

    def purge(self) -> int:
        """Complete every item, also leased ones, and return how many. Dead letters stay.

        Whoever has leased one meanwhile gets LeaseLost from `done`. Nothing brings the items back.
        """
        return sync.run_unsuspended(self._blocking.purge())

    def __iter__(self) -> Iterator[Lease[T]]:
        """Pop until no item is there; each lease is the caller's to end."""
        while (lease := self.pop()) is not None:
            yield lease

    def close(self) -> None:
        """Give the items that this process has leased back to the queue, at once and without counting a failure.

        The end of the main thread, and of a `with` block, does the same. Using the queue again opens it again.
        """
        sync.run_unsuspended(self._blocking.close())

    def _shown(self) -> ShownTable:
        counts = self.counts()
        facts = {"available": counts.available, "leased": counts.pending, "set aside": counts.problems or None}
        return ShownTable.of(repr(self), facts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class AsyncQueue(Generic[T]):
    """The methods of `Queue` as coroutines. An item that a cancelled `pop` took comes back when its lease runs out.

    Items are encoded and decoded in the caller's thread, since their own code may do anything and take its time. The
    engine runs in the background loop.

    Args:
        way: how each step of the engine is waited for. `Queue` has these very methods, with a way that blocks.
    """

    def __init__(self, queue: Queue[T], way: sync.LoopWaiter = sync.awaited) -> None:
        self._queue = queue
        self._way = way

    async def push(self, item: T) -> None:
        """`Queue.push`, as a coroutine."""
        await self.push_many([item], 1)

    async def push_many(self, items: Iterable[T], batch: int | None = None) -> None:
        """`Queue.push_many`, as a coroutine."""
        if batch is not None:
            _check_count("batch", batch)
        encoded = codec.encode(items, self._queue._encoding)
        if encoded:
            await self._on(lambda engine: engine.push(encoded, batch))

    async def peek(self) -> T | None:
        """`Queue.peek`, as a coroutine."""
        found = await self._on(lambda engine: engine.peek(1))
        try:
            item: T | None = codec.decode(found[0].item) if found else None
        except Unreadable as error:
            raise Unreadable(
                f"the oldest item: {error}; import what it needs, or let pop make it a dead letter"
            ) from error
        return item

    async def pop(self, lease_timeout: float = 60.0, wait: float = 0.0) -> Lease[T] | None:
        """`Queue.pop`, as a coroutine."""
        return next(iter(await self.pop_many(1, lease_timeout, wait)), None)

    async def pop_many(self, count: int, lease_timeout: float = 60.0, wait: float = 0.0) -> list[Lease[T]]:
        """`Queue.pop_many`, as a coroutine."""
        _check_count("count", count)
        timeout = _seconds("lease_timeout", lease_timeout)
        longest = _wait(wait)
        engine = self._queue._engine.opened()
        ready = engine.take_now(timeout) if count == 1 and engine is not None else None
        if ready is not None and (lease := await self._leased(ready)) is not None:
            return [lease]
        while taken := await self._on(lambda engine: engine.take(count, timeout, longest)):
            if leases := [lease for one in taken if (lease := await self._leased(one)) is not None]:
                return leases
        return []

    async def done(self, lease: Leases[T]) -> None:
        """`Queue.done`, as a coroutine."""
        engine = self._queue._engine.opened()
        if engine is not None and isinstance(lease, Lease) and engine.done_now([lease.lease_id]):
            lease.ended = True
            return
        await self._ended(lease, lambda engine, leases: engine.done(leases))

    async def release(self, lease: Leases[T], failed: bool = True) -> None:
        """`Queue.release`, as a coroutine."""
        await self._ended(lease, lambda engine, leases: engine.release(leases, failed))

    async def extend(self, lease: Lease[T], seconds: float) -> None:
        """`Queue.extend`, as a coroutine."""
        timeout = _seconds("seconds", seconds)
        held = _lease(lease)
        held.deadline = await self._on(lambda engine: engine.extend(held.lease_id, timeout))

    async def keep(self, lease: Lease[T]) -> None:
        """`Queue.keep`, as a coroutine."""
        sync.start(self._queue.aio._renewing(_lease(lease)))

    async def pending(self) -> int:
        """`Queue.pending`, as a coroutine."""
        return (await self.counts()).pending

    async def size(self) -> int:
        """`Queue.size`, as a coroutine."""
        return (await self.counts()).available

    async def counts(self) -> Counts:
        """`Queue.counts`, as a coroutine."""
        return await self._on(lambda engine: engine.counts())

    async def letters(self, limit: int = 100) -> list[DeadLetter]:
        """`Queue.letters`, as a coroutine."""
        _check_count("limit", limit)
        return [_dead_letter(peeked) for peeked in await self._on(lambda engine: engine.letters(limit))]

    async def redrive(self, limit: int | None = None) -> int:
        """`Queue.redrive`, as a coroutine."""
        if limit is not None:
            _check_count("limit", limit)
        return await self._on(lambda engine: engine.redrive(limit))

    async def purge(self) -> int:
        """`Queue.purge`, as a coroutine."""
        return await self._on(lambda engine: engine.purge())

    async def __aiter__(self) -> AsyncIterator[Lease[T]]:
        while (lease := await self.pop()) is not None:
            yield lease

    async def close(self) -> None:
        """`Queue.close`, as a coroutine."""
        await self._way(self._closing())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    # --- inside

    async def _on(self, act: Callable[[QueueEngine], Awaitable[R]]) -> R:
        """`act` on the engine, which is opened if need be."""

        async def acting() -> R:
            return await act(await self._queue._engine.get())

        return await self._way(acting())

    async def _leased(self, taken: Delivery) -> Lease[T] | None:
        """None if the item cannot be decoded: then it is a dead letter."""
        try:
            item: T = codec.decode(taken.item)
        except Unreadable as error:
            reason = str(error)
            with suppress(UnknownLease):
                await self._on(lambda engine: engine.give_up(taken.id, reason))
            return None
        return Lease(item, taken.id, taken.taken_at, taken.number, taken.deadline, self._queue)

    async def _ended(self, given: Leases[T], act: Callable[[QueueEngine, Sequence[str]], Awaitable[None]]) -> None:
        leases = _leases(given)
        try:
            await self._on(lambda engine: act(engine, [lease.lease_id for lease in leases]))
        except UnknownLease as error:
            _note_end(lease for lease in leases if lease.lease_id not in error.leases)
            raise
        _note_end(leases)

    async def _renewing(self, lease: Lease[T]) -> None:
        length = lease.deadline - lease.timestamp
        with suppress(UnknownLease):
            while not lease.ended:
                await asyncio.sleep(length * RENEWAL_SHARE)
                with suppress(StoreError, ConnectionError):
                    await self.extend(lease, length)

    async def _closing(self) -> None:
        engine = await self._queue._engine.take()
        if engine is not None:
            await engine.close()


def _check_count(field: str, value: int) -> None:
    if not isinstance(value, Integral) or value < 1:
        raise InvalidInput(field, value, "use a whole number of at least 1")


def _seconds(field: str, value: float) -> float:
    if not isinstance(value, Real) or not 0 < value < math.inf:
        raise InvalidInput(field, value, "use a number of seconds above 0")
    return float(value)


def _wait(value: float) -> float:
    if not isinstance(value, Real) or not value >= 0:
        raise InvalidInput("wait", value, "use a number of seconds, or 0")
    return float(value)


def _lease(given: Lease[T], field: str = "lease") -> Lease[T]:
    if not isinstance(given, Lease):
        raise InvalidInput(field, given, "give the lease that pop returned (not its item), or a list of leases")
    return given


def _leases(given: Leases[T]) -> list[Lease[T]]:
    if isinstance(given, (Lease, str, bytes)) or not isinstance(given, Iterable):
        return [_lease(given)]
    return [_lease(each, f"lease[{number}]") for number, each in enumerate(given)]


def _note_end(leases: Iterable[Lease[Any]]) -> None:
    for lease in leases:
        lease.ended = True


def _dead_letter(peeked: Peeked) -> DeadLetter:
    reason, deliveries = (peeked.origin.reason, peeked.origin.deliveries) if peeked.origin else ("", 0)
    try:
        return DeadLetter(codec.decode(peeked.item), reason, deliveries)
    except Unreadable:
        return DeadLetter(None, reason, deliveries)
