"""The interface of every queue: at least once, in order, under leases.

A queue hands an item out under a lease. `done` ends the item for good. `release`, an exception in the lease's `with`
block, or a lease that runs out brings the item back, before all others. An item that fails again and again becomes a
dead letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Generic, Self

from fray import sync
from fray.display import Shown, ShownTable
from fray.queue import codec
from fray.queue.async_queue import AsyncQueue, DeadLetter, Leases, T, checked_wait, leased, noted
from fray.queue.engine import Counts, QueueEngine, Unreadable
from fray.queue.lease import Lease
from fray_coordinator.per_loop import PerLoop
from fray_layouts.errors import InvalidInput


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
        return AsyncQueue(self._engine, self._encoding, self, sync.blocking)

    @property
    def aio(self) -> AsyncQueue[T]:
        """The same queue with coroutines for methods, which never block the caller's event loop.

        lease = await queue.aio.pop(wait=30)
        async with lease: ...
        """
        return AsyncQueue(self._engine, self._encoding, self)

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
        checked_wait(wait)
        engine = self._engine.opened()
        if engine is not None and (taken := engine.take_now(lease_timeout)) is not None:
            try:
                return leased(self, taken)
            except Unreadable as error:
                sync.run_unsuspended(self._blocking._give_up(taken, error))
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
        if not noted(self._engine.opened(), lease):
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
