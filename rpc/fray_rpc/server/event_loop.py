"""The event loop of a server's `async def` methods, in a thread of its own.

It is a separate module because asyncio is large: a server without such methods never imports it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

from fray_runtime.threads import run_event_loop, start_loop

OnEnd = Callable[[Any, BaseException | None], None]
"""Receives the value, or the exception that was raised instead."""


class EventLoopThread:
    """An event loop in a thread of its own, until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()  # the loop itself holds only weak references
        self._closed = False
        start_loop(lambda: run_event_loop(self._loop, lambda: self._closed), "fray-actor-loop")

    def start(self, coroutine: Coroutine[Any, Any, Any], ended: OnEnd) -> None:
        """Run `coroutine`; `ended` is called in the loop's thread."""
        self._loop.call_soon_threadsafe(self._begin, coroutine, ended)

    def close(self) -> None:
        """Stop the loop; coroutines that have not ended do not continue."""
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)

    def drain(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        """The items of an asynchronous generator, for a thread other than the loop's."""
        try:
            while True:
                try:
                    yield asyncio.run_coroutine_threadsafe(_next(items), self._loop).result()
                except StopAsyncIteration:
                    return
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                asyncio.run_coroutine_threadsafe(close(), self._loop).result()

    def _begin(self, coroutine: Coroutine[Any, Any, Any], ended: OnEnd) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._end(task, ended))

    def _end(self, task: asyncio.Task[Any], ended: OnEnd) -> None:
        self._tasks.discard(task)
        try:
            value = task.result()
        except BaseException as error:  # it goes to the caller, and the loop continues
            ended(None, error)
        else:
            ended(value, None)


async def _next(items: AsyncIterator[Any]) -> Any:
    return await anext(items)
