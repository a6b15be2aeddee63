"""Iterators over items that arrive one by one; they work in a thread with `for` and in coroutines with `async for`."""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

from fray import sync

T = TypeVar("T")

_END: Any = object()


class Items(Iterator[T], AsyncIterator[T], ABC):
    """An iterator over items that arrive one by one: `for` waits for them in a thread, `async for` in an event loop.

    If a coroutine is cancelled while it waits, no item is lost: the next caller gets the item that was being fetched.
    The source ends when the iterator is closed or garbage-collected.
    """

    def __init__(self) -> None:
        self._ready: deque[T] = deque()
        self._coming: Future[Sequence[T] | None] | None = None
        self._over = False

    def __next__(self) -> T:
        while not self._ready and not self._over:
            coming, self._coming = self._coming, None
            self._take(self._fetch() if coming is None else coming.result())
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()

    async def __anext__(self) -> T:
        while not self._ready and not self._over:
            coming = self._coming = self._coming or self._begin()
            try:
                found = await asyncio.wrap_future(coming)
            except asyncio.CancelledError:
                raise
            except BaseException:
                self._coming = None
                raise
            self._coming = None
            self._take(found)
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.popleft()

    def close(self) -> None:
        """End the source; returns at once, and may be called again."""
        if not self._over:
            self._over = True
            self._ready.clear()
            self._end(self._coming)

    def _take(self, found: Sequence[T] | None) -> None:
        if found is None:
            self._over = True
        else:
            self._ready.extend(found)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()

    @abstractmethod
    def _fetch(self) -> Sequence[T] | None:
        """Wait for the next items, and return them; None at the end."""

    @abstractmethod
    def _begin(self) -> Future[Sequence[T] | None]:
        """Start to fetch the next items, and return a future of what `_fetch` returns."""

    @abstractmethod
    def _end(self, coming: Future[Any] | None) -> None:
        """End the source; returns at once. coming: the future of a fetch that is under way, if there is one."""


class LoopItems(Items[T]):
    """The items of an async generator that runs in the background loop and yields several items at a time."""

    def __init__(self, source: AsyncGenerator[Sequence[T], None]) -> None:
        super().__init__()
        self._source = _LoopSource(source)

    def _fetch(self) -> Sequence[T] | None:
        return sync.run(self._source.fetch())

    def _begin(self) -> Future[Sequence[T] | None]:
        return sync.start(self._source.fetch())

    def _end(self, coming: Future[Any] | None) -> None:
        sync.start(self._source.close())


class _LoopSource(Generic[T]):
    """The generator of `LoopItems`, in the background loop."""

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self._fetching: asyncio.Task[Any] | None = None

    async def fetch(self) -> T | None:
        self._fetching = asyncio.current_task()
        try:
            return await anext(self._items, None)
        finally:
            self._fetching = None

    async def close(self) -> None:
        if (fetching := self._fetching) is not None:  # a running generator cannot be closed
            fetching.cancel()
            await asyncio.wait([fetching])
        await self._items.aclose()


class ThreadItems(Items[T]):
    """The items of a blocking generator. For `async for`, it runs in threads."""

    def __init__(self, source: Generator[T, None, None]) -> None:
        super().__init__()
        self._source = source

    def _fetch(self) -> Sequence[T] | None:
        return _next_of(self._source)

    def _begin(self) -> Future[Sequence[T] | None]:
        return sync.start_in_thread(partial(_next_of, self._source))

    def _end(self, coming: Future[Any] | None) -> None:
        # Not in this thread: a finalizer may have interrupted it while it holds locks that closing the source needs.
        source = self._source
        if coming is None:
            sync.start(_close(source))
        else:
            coming.add_done_callback(lambda _: source.close())


async def _close(source: Generator[T, None, None]) -> None:
    source.close()


def _next_of(source: Iterator[T]) -> Sequence[T] | None:
    item = next(source, _END)
    return None if item is _END else (item,)
