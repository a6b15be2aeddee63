"""Items on their way through a queue: a producer encodes them, and a consumer, which may be cancelled, gets them."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from fray_coordinator.background import start_task
from fray_layouts.errors import FrayError


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
