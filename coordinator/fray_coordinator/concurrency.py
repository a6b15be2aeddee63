"""Tasks that run beside others: in the background, or one operation on many objects.

**Invariant.** Whoever depends on a task that runs in the background gets its outcome, an error, or its next turn.
**Unsafe sequence.** Such a task raises. Its exception is shown when the task is collected, if at all, and those that
depend on it wait for ever. **Why this cannot happen.** `start_task` asks for the function that gets the exception, and
logs it. A loop that just has to go on runs in `keep_running`. All other tasks are awaited by the code that starts them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from fray_coordinator.errors import describe_error, is_outage

T = TypeVar("T")

LOOP_PAUSE = 1.0
"""Seconds before work that has raised begins again: one that raises each time costs little."""

log = logging.getLogger("fray")


def start_task(
    work: Coroutine[Any, Any, T], failed: Callable[[BaseException], object] | None = None
) -> asyncio.Task[T]:
    """Start a task that runs in the background until it ends or is cancelled.

    failed: called with the exception, which is logged, if `work` raises; it must end what others wait for. None: nobody
    waits for anything.
    """
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)

    def end(task: asyncio.Task[T]) -> None:
        _running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of Fray has failed: %s", task.get_coro(), exc_info=error)
            if failed is not None:
                failed(error)

    task.add_done_callback(end)
    return task


async def keep_running(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `work` until it returns; if it raises, it begins again after a pause."""
    while True:
        try:
            return await work()
        except Exception:
            log.exception("work of Fray in the background has failed, and begins again: %s", work)
        await asyncio.sleep(LOOP_PAUSE)


_running: set[asyncio.Task[Any]] = set()
"""The tasks, kept alive here because an event loop has only weak references to them."""


MAX_CONCURRENT, MAX_CONCURRENT_FOR_PEOPLE = 16, 32
"""Objects that are processed at a time: a bucket answers this many requests of one process without queueing them. Twice
as many while a person waits for the result."""
V = TypeVar("V")


async def map_concurrently(
    items: Iterable[T], act: Callable[[T], Awaitable[V]], at_once: int = MAX_CONCURRENT
) -> list[V]:
    """Run `act` on every item, `at_once` at a time; results in order. The first exception ends it and is raised."""
    todo = list(items)
    if len(todo) == 1:
        return [await act(todo[0])]
    results: dict[int, V] = {}
    numbered = iter(enumerate(todo))

    async def work() -> None:
        for number, item in numbered:
            results[number] = await act(item)

    workers = [asyncio.ensure_future(work()) for _ in range(min(at_once, len(todo)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
    return [results[number] for number in range(len(todo))]


async def map_noting_problems(
    items: Iterable[T],
    act: Callable[[T], Awaitable[V]],
    problems: dict[str, str],
    name: Callable[[T], str] = str,
    at_once: int = MAX_CONCURRENT,
) -> list[V]:
    """Run `act` on every item. An item that raises is noted in `problems` and skipped, unless the store is unreachable.

    One bad object must not keep the pass from all others, whatever error it causes, so every exception is caught.
    """

    async def guarded(item: T) -> list[V]:
        try:
            return [await act(item)]
        except Exception as error:
            _note(error, problems, name(item))
            return []

    return [result for results in await map_concurrently(items, guarded, at_once) for result in results]


def decide_each(
    items: Iterable[T], decide: Callable[[T], V], problems: dict[str, str], name: Callable[[T], str] = str
) -> list[V]:
    """The results of a plain function for every item, in order. An item for which it raises is noted and left out.

    Every decision about all owners, all agents or all machines goes through this, so that one that nobody foresaw ends
    neither the step nor the process.
    """
    results: list[V] = []
    for item in items:
        try:
            results.append(decide(item))
        except Exception as error:
            _note(error, problems, name(item))
    return results


def _note(error: Exception, problems: dict[str, str], name: str) -> None:
    """Note the error of one item. Raises it again if it concerns all: the store is unreachable."""
    if is_outage(error):
        raise error
    problems[name] = describe_error(error)
