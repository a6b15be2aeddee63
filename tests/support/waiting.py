"""How tests wait: they look again and again until a condition holds. The bound only turns a hang into a failure."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")

PATIENCE = 200.0
"""Seconds; a busy machine needs long, and the time limit of a test is 300."""

PAUSE = 0.02
"""Seconds between two looks."""


def wait_until(look: Callable[[], T | None], within: float = PATIENCE) -> T:
    """The first true answer of `look`."""
    deadline = time.monotonic() + within
    while not (answer := look()):
        assert time.monotonic() < deadline, f"not within {within} s"
        time.sleep(PAUSE)
    return answer


@overload
async def eventually(look: Callable[[], Awaitable[T | None]], within: float = PATIENCE) -> T: ...
@overload
async def eventually(look: Callable[[], T | None], within: float = PATIENCE) -> T: ...
async def eventually(look: Callable[[], object], within: float = PATIENCE) -> object:
    """The first true answer of `look`, a function or a coroutine function."""
    deadline = time.monotonic() + within
    while True:
        answer = look()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {within} s"
        await asyncio.sleep(PAUSE)
