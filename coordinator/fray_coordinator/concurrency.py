"""Doing the same with many objects, some at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from fray_coordinator.errors import describe_error, is_outage

MAX_CONCURRENT, MAX_CONCURRENT_FOR_PEOPLE = 16, 32
"""Objects that are worked on at a time: so many requests a bucket answers to one process without a queue; and twice as
many where somebody waits for it."""

T = TypeVar("T")
V = TypeVar("V")


async def map_concurrently(
    items: Iterable[T], act: Callable[[T], Awaitable[V]], at_once: int = MAX_CONCURRENT
) -> list[V]:
    """`act` on every item, `at_once` at a time, results in order; the first exception ends it."""
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
    """`act` on every item; one that raises is noted in `problems` and skipped, unless the store answers nobody.

    One odd object must not keep the pass from all the others, whatever error it leads to: also one that nobody
    thought of.
    """

    async def guarded(item: T) -> list[V]:
        try:
            return [await act(item)]
        except Exception as error:
            if is_outage(error):
                raise
            problems[name(item)] = describe_error(error)
            return []

    return [result for results in await map_concurrently(items, guarded, at_once) for result in results]
