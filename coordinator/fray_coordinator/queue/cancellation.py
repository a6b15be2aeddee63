"""Taking for somebody who may have gone by the time that there is something."""

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
    """What `taking` gives; if the caller is cancelled before, that is given back as soon as it is there."""
    task = asyncio.ensure_future(taking)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        returning = asyncio.ensure_future(_give_back(task, give_back))
        _background.add(returning)
        returning.add_done_callback(_background.discard)
        raise


async def _give_back(task: asyncio.Future[list[T]], give_back: Callable[[list[T]], Awaitable[None]]) -> None:
    with suppress(FrayError):  # nobody is there to be told; it comes back when its lease runs out
        if taken := await task:
            await give_back(taken)


_background: set[asyncio.Future[None]] = set()
"""A loop holds its tasks weakly."""
