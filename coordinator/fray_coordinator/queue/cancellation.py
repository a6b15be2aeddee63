"""Taking items for a caller that may be cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from fray_layouts.errors import FrayError

T = TypeVar("T")


async def take_or_return(
    taking: Coroutine[Any, Any, list[T]], give_back: Callable[[list[T]], Awaitable[None]]
) -> list[T]:
    """The result of `taking`; if the caller is cancelled before it is there, it goes to `give_back`."""
    task = asyncio.ensure_future(taking)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        returning = asyncio.ensure_future(_give_back(task, give_back))
        _background.add(returning)
        returning.add_done_callback(_background.discard)
        raise


async def _give_back(task: asyncio.Future[list[T]], give_back: Callable[[list[T]], Awaitable[None]]) -> None:
    with suppress(FrayError):  # nobody waits for the error; the item comes back when its lease runs out
        if taken := await task:
            await give_back(taken)


_background: set[asyncio.Future[None]] = set()
"""Keeps the tasks alive: an event loop has only weak references to them."""
