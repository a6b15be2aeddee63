"""An iterator over futures in the order in which they are done, with an optional progress bar."""

import asyncio
import queue
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from fray.wait_line import progress_shown, wait_with_progress

F = TypeVar("F", bound=Future[Any])


class CompletedFutures(Iterator[F], AsyncIterator[F]):
    """Iterates over futures in the order in which they are done, in a thread with `for` or in a loop with `async for`.

    Args:
        progress: returns the pool's progress, for people.
        timeout: seconds for all of them, from the first step on; afterwards it raises the builtin TimeoutError.
        title: title of a progress bar on stderr, if that is a terminal; "" shows none.
    """

    def __init__(
        self, futures: Iterable[F], progress: Callable[[], str], timeout: float | None = None, title: str = ""
    ) -> None:
        self._futures = list(dict.fromkeys(futures))
        self._progress = progress
        self._timeout = timeout
        self._title = title
        self._in_thread = self._awaited_in_thread()
        self._in_loop = self._awaited_in_loop()

    def __next__(self) -> F:
        return next(self._in_thread)

    async def __anext__(self) -> F:
        return await anext(self._in_loop)

    def _awaited_in_thread(self) -> Generator[F, None, None]:
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for future in self._futures:
            future.add_done_callback(done.put)
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        taken: list[F] = []

        def take(within: float) -> bool:
            with suppress(queue.Empty):
                taken.append(done.get(timeout=max(within, 0.0)))
            return bool(taken)

        with _progress_bar(self._title, len(self._futures)) as advance:
            for number in range(len(self._futures)):
                left = None if deadline is None else deadline - time.monotonic()
                if not wait_with_progress(take, left, None if self._title else self._progress):
                    raise self._too_late(number)
                yield taken.pop()
                advance()

    async def _awaited_in_loop(self) -> AsyncGenerator[F, None]:
        loop, done = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def put(future: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop has ended, so no coroutine waits there any more
                loop.call_soon_threadsafe(done.put_nowait, future)

        for future in self._futures:
            future.add_done_callback(put)
        deadline = None if self._timeout is None else loop.time() + self._timeout
        with _progress_bar(self._title, len(self._futures)) as advance:
            for number in range(len(self._futures)):
                try:
                    async with asyncio.timeout_at(deadline):
                        future = await self._with_progress(done.get())
                except TimeoutError:
                    raise self._too_late(number) from None
                yield future
                advance()

    async def _with_progress(self, waiting: Coroutine[Any, Any, Any]) -> Any:
        if self._title:  # the bar shows the progress
            return await waiting
        with progress_shown(self._progress):
            return await waiting

    def _too_late(self, done: int) -> TimeoutError:
        left, count = len(self._futures) - done, len(self._futures)
        return TimeoutError(f"{left} of {count} tasks have not ended after {self._timeout:g} s: {self._progress()}")


@contextmanager
def _progress_bar(title: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar on stderr. Each call of the function that it gives advances the bar by one, up to `total`."""
    if not title:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(title, total=total)
        yield lambda: progress.advance(bar)
