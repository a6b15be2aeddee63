"""`AsyncQueue`: the methods of a queue as coroutines, for any event loop. `Queue` has them as blocking methods.

Items are encoded and decoded in the caller's thread, because an item's own code may be slow or do anything. The engine
runs in the background loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral, Real
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from fray import sync
from fray.queue.engine import Counts, Delivery, Peeked, QueueEngine, UnknownLease, Unreadable, decode, encode
from fray.queue.lease import Lease, LeaseOwner
from fray_coordinator.errors import StoreError
from fray_coordinator.per_process import PerLoop
from fray_layouts.errors import InvalidInput

R = TypeVar("R")

if TYPE_CHECKING:  # as in Python 3.13, so that `FileQueue("work")` needs no annotation
    import typing_extensions

    T = typing_extensions.TypeVar("T", default=Any)
else:
    T = TypeVar("T")

Leases = Lease[T] | Sequence[Lease[T]]
RENEWAL_SHARE = 0.3
"""Share of a lease's length after which it is renewed in the background. At 0.3, two renewals in a row may fail."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An item that was given up.

    Attributes:
        item: the item as it was pushed; None if it cannot be decoded.
        reason: why it was given up.
        deliveries: how often it was delivered before.
    """

    item: Any
    reason: str
    deliveries: int


class AsyncQueue(Generic[T]):
    """The methods of `Queue` as coroutines. If a `pop` is cancelled, its item comes back when the lease runs out.

    Args:
        engine, encoding: those of the `Queue`.
        owner: the queue that the leases refer to.
        waiter: how each step of the engine is waited for. `Queue` runs these methods with a waiter that blocks.
    """

    def __init__(
        self, engine: PerLoop[QueueEngine], encoding: str, owner: LeaseOwner, waiter: sync.LoopWaiter = sync.awaited
    ) -> None:
        self._engine = engine
        self._encoding = encoding
        self._owner = owner
        self._waiter = waiter

    async def push(self, item: T) -> None:
        """`Queue.push`, as a coroutine."""
        await self.push_many([item], 1)

    async def push_many(self, items: Iterable[T], batch: int | None = None) -> None:
        """`Queue.push_many`, as a coroutine."""
        if batch is not None:
            _check_count("batch", batch)
        encoded = encode(items, self._encoding)
        if encoded:
            await self._on(lambda engine: engine.push(encoded, batch))

    async def peek(self) -> T | None:
        """`Queue.peek`, as a coroutine."""
        found = await self._on(lambda engine: engine.peek(1))
        try:
            item: T | None = decode(found[0].item) if found else None
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
        longest = checked_wait(wait)
        engine = self._engine.opened()
        ready = engine.take_now(timeout) if count == 1 and engine is not None else None
        if ready is not None and (lease := await self._leased(ready)) is not None:
            return [lease]
        while taken := await self._on(lambda engine: engine.take(count, timeout, longest)):
            if leases := [lease for one in taken if (lease := await self._leased(one)) is not None]:
                return leases
        return []

    async def done(self, lease: Leases[T]) -> None:
        """`Queue.done`, as a coroutine."""
        if not noted(self._engine.opened(), lease):
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
        renewing = AsyncQueue[T](self._engine, self._encoding, self._owner)
        sync.start(renewing._renewing(_lease(lease)))

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
        await self._waiter(self._closing())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    # --- private methods

    async def _on(self, act: Callable[[QueueEngine], Awaitable[R]]) -> R:
        """Call `act` with the engine, which is opened if it is not open yet."""

        async def acting() -> R:
            return await act(await self._engine.get())

        return await self._waiter(acting())

    async def _leased(self, taken: Delivery) -> Lease[T] | None:
        """The lease of a delivery. If the item cannot be decoded, it becomes a dead letter, and None is returned."""
        try:
            return leased(self._owner, taken)
        except Unreadable as error:
            await self._give_up(taken, error)
            return None

    async def _give_up(self, taken: Delivery, error: Unreadable) -> None:
        reason = str(error)
        with suppress(UnknownLease):  # the lease ran out, so the next process that takes the item gives it up
            await self._on(lambda engine: engine.give_up(taken.id, reason))

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
        with suppress(UnknownLease):  # the lease has ended; if it ran out, `done` tells the user
            while not lease.ended:
                await asyncio.sleep(length * RENEWAL_SHARE)
                with suppress(StoreError, ConnectionError):  # the next renewal may still be in time
                    await self.extend(lease, length)

    async def _closing(self) -> None:
        engine = await self._engine.take()
        if engine is not None:
            await engine.close()


def leased(owner: LeaseOwner, taken: Delivery) -> Lease[Any]:
    """Make the lease of a delivery. Raises Unreadable if the item cannot be decoded."""
    return Lease(decode(taken.item), taken.id, taken.taken_at, taken.number, taken.deadline, owner)


def noted(engine: QueueEngine | None, lease: Leases[Any]) -> bool:
    """Note that a lease's work is done, from any thread. Returns False if `done` of the engine has to be called."""
    if engine is None or not isinstance(lease, Lease) or not engine.done_now(lease.lease_id):
        return False
    lease.ended = True
    return True


def _check_count(field: str, value: int) -> None:
    if not isinstance(value, Integral) or value < 1:
        raise InvalidInput(field, value, "use a whole number of at least 1")


def _seconds(field: str, value: float) -> float:
    if not isinstance(value, Real) or not 0 < value < math.inf:
        raise InvalidInput(field, value, "use a number of seconds above 0")
    return float(value)


def checked_wait(value: float) -> float:
    """Return `value` as seconds of a wait. Raises InvalidInput if it is not a number of at least 0."""
    if not isinstance(value, (float, Real)) or not value >= 0:
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
        return DeadLetter(decode(peeked.item), reason, deliveries)
    except Unreadable:
        return DeadLetter(None, reason, deliveries)
