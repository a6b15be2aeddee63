"""`Queue`: the interface of every queue.

A queue delivers an item under a lease. `done` completes the item for good. It comes back, before all others, when it is
released, when the lease's `with` block raises, or when the lease runs out. An item that fails again and again becomes a
dead letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Generic, Self

from fray import sync
from fray.display import Shown, ShownTable
from fray.queue.async_queue import AsyncQueue, DeadLetter, Leases, T, checked_wait, leased, noted
from fray.queue.engine import ENCODINGS, Counts, QueueEngine, Unreadable, encode
from fray.queue.lease import Lease
from fray_coordinator.per_process import PerLoop
from fray_layouts.errors import InvalidInput


class Queue(Shown, Generic[T]):
    """A queue with blocking methods; `aio` has the same methods as coroutines, for any event loop.

    Args:
        engine: the engine that does the work. Each process opens it when it is first used.
        encoding: "pickle" (anything that cloudpickle can pickle), or "json" for consumers in other languages.

    Every method may raise `StoreUnavailable` when the storage (or the server) does not answer; then call it again.
    """

    def __init__(self, engine: PerLoop[QueueEngine], encoding: str = "pickle") -> None:
        if encoding not in ENCODINGS:
            raise InvalidInput("encoding", encoding, f"use one of {', '.join(ENCODINGS)}")
        self._engine = engine
        self._encoding = encoding

    @property
    def _blocking(self) -> AsyncQueue[T]:
        return AsyncQueue(self._engine, self._encoding, self, sync.blocking)

    @property
    def aio(self) -> AsyncQueue[T]:
        """The same queue with coroutines as methods, which never block the caller's event loop.

        lease = await queue.aio.pop(wait=30)
        async with lease: ...
        """
        return AsyncQueue(self._engine, self._encoding, self)

    def push(self, item: T) -> None:
        """Put an item at the end. When this returns, it is stored.

        Raises:
            InvalidInput: the item cannot be encoded.
        """
        engine = self._engine.opened()
        if engine is None:
            sync.run_unsuspended(self._blocking.push(item))
        elif (rest := engine.push_now(encode([item], self._encoding)[0])) is not None:
            sync.run(rest)

    def push_many(self, items: Iterable[T], batch: int | None = None) -> None:
        """Put items at the end, in this order. If it raises, some of them may be in the queue.

        Args:
            batch: number of items that are stored together and go to one consumer at a time. Larger batches need fewer
                requests, but share out the items more coarsely. By default at least 64 batches of at most 250 items.

        Raises:
            InvalidInput: an item cannot be encoded; nothing was pushed.
        """
        sync.run_unsuspended(self._blocking.push_many(items, batch))

    def peek(self) -> T | None:
        """Return the oldest item that is not leased, without taking it; None if there is none.

        Another consumer may take it at any moment. To work on an item, `pop` it.

        Raises:
            Unreadable: the item cannot be decoded here. Import what it needs, or let `pop` make it a dead letter.
        """
        return sync.run_unsuspended(self._blocking.peek())

    def pop(self, lease_timeout: float = 60.0, wait: float = 0.0) -> Lease[T] | None:
        """Lease the oldest item that is not leased; items that came back are first. None if there is none.

        Args:
            lease_timeout: seconds until the item comes back unless it is done, released or extended before. At least
                40% of them are left when this returns.
            wait: seconds to wait for an item.
        """
        checked_wait(wait)
        engine = self._engine.opened()
        if engine is not None and (taken := engine.take_now(lease_timeout)) is not None:
            try:
                return leased(self, taken)
            except Unreadable as error:
                sync.run_unsuspended(self._blocking._give_up(taken, error))
        return sync.run_unsuspended(self._blocking.pop(lease_timeout, wait))

    def pop_many(self, count: int, lease_timeout: float = 60.0, wait: float = 0.0) -> list[Lease[T]]:
        """Lease up to `count` items, each with its own lease as from `pop`; [] if there is none.

        It is quicker than as many calls of `pop`, as is `done` with many leases.

        Args:
            count: at least 1. Fewer are returned if fewer are free: it waits only for the first one.
            lease_timeout, wait: as for `pop`.
        """
        return sync.run_unsuspended(self._blocking.pop_many(count, lease_timeout, wait))

    def done(self, lease: Leases[T]) -> None:
        """Complete an item, so that it never comes back.

        It returns when that is stored, or when it is noted to be stored within a moment; see `durable` of `FileQueue`.

        Args:
            lease: one lease, or several, which is quicker than one by one.

        Raises:
            UnknownLease: the lease was done or released before, has run out, or belongs to another queue. Of several
                leases, its `leases` names those that failed; the others are done.
            LeaseLost: (an UnknownLease) the lease has run out, and another consumer has the item.
        """
        if not noted(self._engine.opened(), lease):
            sync.run_unsuspended(self._blocking.done(lease))

    def release(self, lease: Leases[T], failed: bool = True) -> None:
        """Give an item back to the queue, where it comes before all others. Raises like `done`.

        Args:
            failed: whether it counts towards the maximum of deliveries, after which the item becomes a dead letter.
        """
        sync.run_unsuspended(self._blocking.release(lease, failed))

    def extend(self, lease: Lease[T], seconds: float) -> None:
        """Keep an item for at least `seconds` from now on, and move the lease's `deadline`. Raises like `done`.

        A lease is never shortened. For work of unknown length use `keep`, which extends the lease again and again.
        """
        sync.run_unsuspended(self._blocking.extend(lease, seconds))

    def keep(self, lease: Lease[T]) -> None:
        """Renew a lease in the background until it is done, released or lost; returns at once.

        If the lease cannot be renewed, it runs out, and `done` raises LeaseLost or UnknownLease.
        """
        sync.run_unsuspended(self._blocking.keep(lease))

    def pending(self) -> int:
        """The number of items that are leased by any consumer; reads the storage.

        If another process has a batch, all items of the batch that are not done count as leased.
        """
        return sync.run_unsuspended(self._blocking.pending())

    def size(self) -> int:
        """The number of items that are not leased; reads the storage.

        Dead letters do not count. Others may push and pop at the same time, so the number may be outdated already.
        """
        return sync.run_unsuspended(self._blocking.size())

    def counts(self) -> Counts:
        """The numbers of items by state, and when the oldest one was pushed; see `Counts`.

        `size` and `pending` are parts of it. If you need both, this is one read instead of two.
        """
        return sync.run_unsuspended(self._blocking.counts())

    def letters(self, limit: int = 100) -> list[DeadLetter]:
        """Read the oldest dead letters, at most `limit`: items that were given up, each with the reason.

        An item is given up after `max_deliveries` failures, or if it cannot be decoded. `redrive` pushes it again.
        """
        return sync.run_unsuspended(self._blocking.letters(limit))

    def redrive(self, limit: int | None = None) -> int:
        """Push dead letters again, the oldest first, and return their number. Their deliveries are counted from 0.

        Args:
            limit: the number of letters at most; None takes all.
        """
        return sync.run_unsuspended(self._blocking.redrive(limit))

    def purge(self) -> int:
        """Complete every item, also leased ones, and return their number. Dead letters stay.

        For leases that consumers still have, `done` raises LeaseLost. The items cannot be brought back.
        """
        return sync.run_unsuspended(self._blocking.purge())

    def __iter__(self) -> Iterator[Lease[T]]:
        """Pop items until there are none. The caller has to end each lease."""
        while (lease := self.pop()) is not None:
            yield lease

    def close(self) -> None:
        """Give back the items that this process has leased, at once and without counting a failure.

        The end of the main thread or of a `with` block does the same. If the queue is used again, it is opened again.
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
