"""The event loop of a server's `async def` methods, in a thread of its own.

It has a module of its own because asyncio is not small: a server without such methods never imports this.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

OnEnd = Callable[[Any, BaseException | None], None]
"""Takes the value, or the exception that was raised instead."""


class EventLoopThread:
    """An event loop in a thread of its own, until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()  # the loop itself holds them weakly
        self._closed = False
        threading.Thread(target=self._run, name="fray-actor-loop", daemon=True).start()

    def start(self, coroutine: Coroutine[Any, Any, Any], ended: OnEnd) -> None:
        """Run `coroutine`; `ended` is called in the loop's thread."""
        self._loop.call_soon_threadsafe(self._begin, coroutine, ended)

    def close(self) -> None:
        """Stop; coroutines that have not ended do not go on."""
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)

    def drain(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        """The items of an asynchronous generator, for a thread that is not the loop's."""
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

    def _run(self) -> None:
        while not self._closed:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):  # their tasks have them too, and these end a loop
                self._loop.run_forever()

    def _begin(self, coroutine: Coroutine[Any, Any, Any], ended: OnEnd) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._end(task, ended))

    def _end(self, task: asyncio.Task[Any], ended: OnEnd) -> None:
        self._tasks.discard(task)
        try:
            value = task.result()
        except BaseException as error:  # it is the caller's; the loop goes on
            ended(None, error)
        else:
            ended(value, None)


async def _next(items: AsyncIterator[Any]) -> Any:
    return await anext(items)
