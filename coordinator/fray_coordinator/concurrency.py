"""Runs one operation on many objects: a bounded number at a time, or plain functions one after the other."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from fray_coordinator.errors import describe_error, is_outage

MAX_CONCURRENT, MAX_CONCURRENT_FOR_PEOPLE = 16, 32
"""Objects that are processed at a time: a bucket answers this many requests of one process without queueing them. Twice
as many while a person waits for the result."""

T = TypeVar("T")
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
