"""`Lease`: an item that a consumer has, and its right to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from fray import sync
from fray.queue.engine import UnknownLease

T = TypeVar("T")


class AsyncLeaseOwner(Protocol):
    """The part of an `AsyncQueue` that a lease uses."""

    async def done(self, lease: Lease[Any]) -> None: ...

    async def release(self, lease: Lease[Any], failed: bool = True) -> None: ...


class LeaseOwner(Protocol):
    """The part of a `Queue` that a lease uses."""

    @property
    def aio(self) -> AsyncLeaseOwner: ...

    @property
    def _blocking(self) -> AsyncLeaseOwner: ...

    def done(self, lease: Lease[Any]) -> None: ...

    def release(self, lease: Lease[Any], failed: bool = True) -> None: ...

    def extend(self, lease: Lease[Any], seconds: float) -> None: ...

    def keep(self, lease: Lease[Any]) -> None: ...


@dataclass(eq=False)
class Lease(Generic[T]):
    """An item that this consumer has until `deadline`.

    with queue.pop() as lease:
        work(lease.item)        # done when the block ends, released when it raises

    In coroutines use `async with lease` or `await queue.aio.done(lease)` and so on: this object's own methods block.

    Attributes:
        item: the item as it was pushed.
        lease_id: the id of this lease. The item's next delivery has another one.
        timestamp: time of the delivery, in seconds since the epoch.
        delivery: number of this delivery of the item, from 1. It may also count deliveries that did not happen.
        deadline: time from which others may take the item, in seconds since the epoch.
    """

    item: T
    lease_id: str
    timestamp: float
    delivery: int = 1
    deadline: float = float("inf")
    queue: LeaseOwner | None = field(default=None, repr=False)
    ended: bool = field(default=False, repr=False)

    def done(self) -> None:
        """Complete the item, so that it never comes back. Raises like `Queue.done`.

        For many leases `queue.done(leases)` is quicker, because it writes once for items that were stored together.
        """
        self._queue.done(self)

    def release(self, failed: bool = True) -> None:
        """Give the item back to the queue, where it comes first. Raises like `Queue.done`.

        Args:
            failed: whether it counts towards the deliveries after which the item becomes a dead letter.
        """
        self._queue.release(self, failed=failed)

    def extend(self, seconds: float) -> None:
        """Keep the item for at least `seconds` from now on, and move `deadline`. Raises like `Queue.done`."""
        self._queue.extend(self, seconds)

    def keep(self) -> Self:
        """Renew the lease in the background until it is done, released or lost. Returns the lease at once.

        Use it for work that may take longer than the lease: `with queue.pop().keep() as lease: ...`.
        """
        self._queue.keep(self)
        return self

    def __enter__(self) -> Self:
        if self.ended:
            raise UnknownLease(self.lease_id)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sync.run_unsuspended(self._leave(self._queue._blocking, error))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._leave(self._queue.aio, error)

    async def _leave(self, queue: AsyncLeaseOwner, error: BaseException | None) -> None:
        """End the lease: done if the block ended, released if it raised. The block's own error takes precedence."""
        if self.ended:
            return
        if error is None:
            await queue.done(self)
            return
        try:
            await queue.release(self)
        except UnknownLease:
            pass  # another consumer has the item
        except Exception as failure:
            error.add_note(f"The item could not be given back, and comes back when its lease runs out: {failure}")

    @property
    def _queue(self) -> LeaseOwner:
        if self.queue is None:
            raise ValueError("this lease was created by hand or unpickled and has no queue; get one with pop()")
        return self.queue

    def __reduce__(self) -> tuple[Any, ...]:
        return Lease, (self.item, self.lease_id, self.timestamp, self.delivery, self.deadline)
