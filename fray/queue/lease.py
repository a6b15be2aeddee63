"""An item in a consumer's hands."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from fray import sync
from fray.queue.errors import UnknownLease

if TYPE_CHECKING:
    from fray.queue.api import AsyncQueue, Queue

T = TypeVar("T")


@dataclass(eq=False)
class Lease(Generic[T]):
    """An item that is this consumer's until `deadline`.

    with queue.pop() as lease:
        work(lease.item)        # done when the block ends, released when it raises

    A coroutine writes `async with lease`, or `await queue.aio.done(lease)` and so on: this object's own methods block.

    Attributes:
        item: what was pushed.
        lease_id: names the lease; the same item has another at its next delivery.
        timestamp: when it was handed out, seconds since the epoch.
        delivery: which delivery of the item this is, counted from 1; it may count some that did not happen.
        deadline: when others may take the item over, seconds since the epoch.
    """

    item: T
    lease_id: str
    timestamp: float
    delivery: int = 1
    deadline: float = float("inf")
    queue: Queue[T] | None = field(default=None, repr=False)
    ended: bool = field(default=False, repr=False)

    def done(self) -> None:
        """See `Queue.done`."""
        self._queue.done(self)

    def release(self, failed: bool = True) -> None:
        """See `Queue.release`."""
        self._queue.release(self, failed=failed)

    def extend(self, seconds: float) -> None:
        """See `Queue.extend`."""
        self._queue.extend(self, seconds)

    def keep(self) -> Self:
        """Renew the lease in the background until it is done, released or lost."""
        self._queue.keep(self)
        return self

    def __enter__(self) -> Self:
        if self.ended:
            raise UnknownLease(self.lease_id)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sync.run_unsuspended(self._leave(self._queue._front, error))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._leave(self._queue.aio, error)

    async def _leave(self, queue: AsyncQueue[T], error: BaseException | None) -> None:
        """Done if the block ended, released if it raised; its own error matters more than what releasing says."""
        if self.ended:
            return
        if error is None:
            await queue.done(self)
            return
        try:
            await queue.release(self)
        except UnknownLease:
            pass  # another deals with the item
        except Exception as failure:
            error.add_note(f"The item was not given back, and comes when its lease runs out: {failure}")

    @property
    def _queue(self) -> Queue[Any]:
        if self.queue is None:
            raise ValueError("this lease was made by hand and belongs to no queue; take one with pop()")
        return self.queue

    def __reduce__(self) -> tuple[Any, ...]:
        return Lease, (self.item, self.lease_id, self.timestamp, self.delivery, self.deadline)
