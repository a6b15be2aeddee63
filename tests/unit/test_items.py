"""`for` and `async for` over an async generator in the background loop, or over one that blocks."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence

import pytest

from fray.items import Items, LoopItems, ThreadItems
from tests.support.waiting import eventually, wait_until

gate = threading.Event()
closed = threading.Event()


async def in_loop(count: int) -> AsyncGenerator[Sequence[int], None]:
    try:
        for number in range(0, count, 2):
            yield []
            yield [number, number + 1]
            await eventually(gate.is_set)
        raise LookupError("that was all")
    finally:
        closed.set()


def in_thread(count: int) -> Generator[int, None, None]:
    try:
        for number in range(count):
            yield number
            gate.wait(200)
        raise LookupError("that was all")
    finally:
        closed.set()


Source = Callable[[int], Items[int]]
both = pytest.mark.parametrize(
    "items",
    [lambda count: LoopItems(in_loop(count)), lambda count: ThreadItems(in_thread(count))],
    ids=["loop", "thread"],
)


@pytest.fixture(autouse=True)
def closed_gate() -> Iterator[None]:
    gate.clear()
    closed.clear()
    yield
    gate.set()


@both
def test_a_thread_gets_all_and_then_the_error(items: Source) -> None:
    gate.set()
    numbers = items(4)
    assert [next(numbers) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(LookupError, match="that was all"):
        next(numbers)
    assert list(numbers) == []


async def take_all(numbers: Items[int], found: list[int], within: float | None = None) -> None:
    """Take numbers until none comes within this time in seconds, or until an error is raised."""
    while True:
        found.append(await asyncio.wait_for(anext(numbers), within))


@both
async def test_a_consumer_that_times_out_misses_no_item(items: Source) -> None:
    numbers, found = items(4), list[int]()
    with pytest.raises(TimeoutError):
        await take_all(numbers, found, within=0.01)
    gate.set()
    with pytest.raises(LookupError, match="that was all"):
        await take_all(numbers, found)
    assert found == [0, 1, 2, 3]
    assert [number async for number in numbers] == []


@both
@pytest.mark.parametrize("is_under_way", [False, True])
async def test_the_source_ends_with_its_consumer(items: Source, is_under_way: bool) -> None:
    numbers = items(4)
    assert await anext(numbers) == 0
    if is_under_way:
        with pytest.raises(TimeoutError):
            await take_all(numbers, [], within=0.01)
    assert not closed.is_set()
    del numbers
    gc.collect()
    gate.set()
    await eventually(closed.is_set)


@both
def test_a_closed_stream_of_items_gives_nothing_more(items: Source) -> None:
    numbers = items(4)
    assert next(numbers) == 0
    numbers.close()
    numbers.close()
    assert list(numbers) == []
    wait_until(closed.is_set)
