"""Items on their way through a queue, and the errors that a caller gets; each error says what to do."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from fray_coordinator.concurrency import start_task
from fray_layouts.errors import FrayError, Permanent
from fray_layouts.units import first_names

MAX_NAMED_LEASES = 3
"""Leases that a message names one by one. More would make the message of a batch of hundreds unreadable."""


class UnknownLease(Permanent, ValueError):
    """The lease was done or released before, ran out, was purged, or is not of this queue; its item is unchanged."""

    def __init__(self, *leases: str) -> None:
        """leases: the ids of the unknown leases. The other leases of the same call are done or released."""
        self.leases = leases
        super().__init__(*leases)

    def __str__(self) -> str:
        named = first_names(self.leases, MAX_NAMED_LEASES)
        return f"lease {named}: {self.__doc__}" if named else f"{self.__doc__}"


class LeaseLost(UnknownLease):
    """The lease ran out and another consumer has or had the item, or the queue was purged; the item is unchanged."""


class QueueNotFound(Permanent):
    """There is no such queue; `fray queue ls` lists those that have a name, and a push makes one."""


class EncodedItem(msgspec.Struct, frozen=True, gc=False):
    """An item as bytes. encoding: how to decode them, "pickle" or "json"."""

    body: bytes
    encoding: str = "pickle"


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """An item that one consumer has, from its delivery until its lease ends.

    Attributes:
        id: of the lease; the item's next delivery has another.
        number: the number of this delivery of the item, counted from 1.
        taken_at: when the item was handed out; seconds since the epoch, storage's clock.
        deadline: when others may take the item over, on the same clock.
    """

    id: str
    item: EncodedItem
    number: int
    taken_at: float
    deadline: float


T = TypeVar("T")


async def take_or_return(
    taking: Coroutine[Any, Any, list[T]], give_back: Callable[[list[T]], Awaitable[None]]
) -> list[T]:
    """The result of `taking`. If the caller is cancelled before it is there, `give_back` gets it."""
    task = asyncio.ensure_future(taking)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        start_task(_give_back(task, give_back))
        raise


async def _give_back(task: asyncio.Future[list[T]], give_back: Callable[[list[T]], Awaitable[None]]) -> None:
    with suppress(FrayError):  # nobody waits for the error; the item comes back when its lease runs out
        if taken := await task:
            await give_back(taken)
