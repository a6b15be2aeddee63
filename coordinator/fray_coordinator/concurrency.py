"""Doing the same with many objects, some at a time, and work that goes on in the background."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class BackgroundWork:
    """Runs work in the background, one run at a time for each name: what may outlast a pass of the reconciler.

    So agents are watched, and the lease is renewed, however many files lie in the inbox, however many jobs a dead agent
    held, and however long a repair takes.

    Attributes:
        problems: by name, what ended the last run of that work. An outage is no problem: the work is begun again.
    """

    problems: dict[str, str] = field(default_factory=dict)
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def begin(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Begin a run, unless one of this name goes on."""
        self._running = {other: task for other, task in self._running.items() if not task.done()}
        if name not in self._running:
            self._running[name] = asyncio.create_task(self._run(name, work))

    def forget_all_but(self, names: Collection[str]) -> None:
        """Forget the problems of other work: it is done, or there is nothing left to do it on."""
        self.problems = {name: problem for name, problem in self.problems.items() if name in names}

    async def wait(self, seconds: float | None) -> None:
        """Give all runs so much time to end; None: until they have."""
        if self._running:
            await asyncio.wait(self._running.values(), timeout=seconds)

    def stop(self) -> None:
        """Cancel all runs; the next holder of the lease begins them anew."""
        for task in self._running.values():
            task.cancel()
        self._running.clear()

    async def _run(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except Exception as error:
            if not is_outage(error):
                self.problems[name] = describe_error(error)
        else:
            self.problems.pop(name, None)
