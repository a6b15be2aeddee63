"""Whatever a call, task or job raises, everyone who waits for it gets an end."""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from fray import sync
from fray.client import StorageClient
from fray.cluster import JobRequest, JobStatus, LocalCluster
from fray.errors import InvalidInput
from fray.futures import TaskFuture
from fray.pool import WorkerPool
from fray.pool.future_table import FutureTable
from fray_layouts.queue_records import OutcomeKind, TaskOutcome
from fray_rpc.wire.serialization import pack_error
from tests.support.waiting import PATIENCE


class PicklingExits(Exception):
    def __reduce__(self) -> Any:
        raise SystemExit("pickled")


class LoadingInterrupts(Exception):
    def __reduce__(self) -> Any:
        return _interrupt, ()


class TextExits(Exception):
    def __str__(self) -> str:
        raise SystemExit("text")


class TwoArguments(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class OwnBase(BaseException):
    """Neither an Exception nor one that Python knows."""


def _interrupt() -> None:
    raise KeyboardInterrupt


_ARGUMENTS: dict[type[BaseException], tuple[Any, ...]] = {
    UnicodeDecodeError: ("utf-8", b"x", 0, 1, "bad"),
    UnicodeEncodeError: ("utf-8", "x", 0, 1, "bad"),
    UnicodeTranslateError: ("x", 0, 1, "bad"),
    ExceptionGroup: ("several", [ValueError("one"), StopIteration("two")]),
    BaseExceptionGroup: ("several", [KeyboardInterrupt()]),
}
BUILTIN = sorted(
    {kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, BaseException)},
    key=lambda kind: kind.__name__,
)
RAISED: list[BaseException] = [
    *(kind(*_ARGUMENTS.get(kind, ("said",))) for kind in BUILTIN),
    *(PicklingExits("p"), LoadingInterrupts("l"), TextExits("t"), TwoArguments("a", "b"), OwnBase("o")),
    *(asyncio.CancelledError("c"), concurrent.futures.CancelledError("f"), concurrent.futures.InvalidStateError("i")),
]
PLAIN = [error for error in RAISED if type(error) in BUILTIN and isinstance(error, Exception)]


def names(error: BaseException) -> str:
    return type(error).__name__


class Raiser:
    def fail(self, number: int) -> None:
        raise RAISED[number]

    async def afail(self, number: int) -> None:
        raise RAISED[number]

    def items(self, number: int) -> Iterator[int]:
        yield 1
        raise RAISED[number]

    def fine(self) -> int:
        return 1


def fail(number: int) -> None:
    raise RAISED[number]


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    with LocalCluster(use_processes=False) as local:
        yield local


@pytest.fixture(scope="module")
def raiser(local: LocalCluster) -> Any:
    return StorageClient(local).create_actor(Raiser, name="raiser")


@pytest.fixture(scope="module")
def pool(local: LocalCluster) -> Iterator[WorkerPool]:
    with WorkerPool(local, 1) as pool:
        yield pool


def ended(wait: Callable[[], Any]) -> BaseException:
    """The exception with which a wait ends."""
    try:
        wait()
    except BaseException as error:
        return error
    raise AssertionError("it ended without an exception")


async def awaited(future: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        await future


def wait_done(future: Future[Any]) -> None:
    concurrent.futures.wait([future], PATIENCE)
    future.result(0)


WAYS: dict[str, Callable[[Any], Any]] = {
    "result": lambda future: future.result(PATIENCE),
    "await": lambda future: asyncio.run(awaited(future)),
    "wait": wait_done,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", ["call", "coroutine", "task"])
def test_every_exception_ends_every_way_to_wait(what: str, way: str, raiser: Any, pool: WorkerPool) -> None:
    starts: dict[str, Callable[[int], Any]] = {
        "call": lambda number: raiser.fail.remote(number),
        "coroutine": lambda number: raiser.afail.remote(number),
        "task": lambda number: pool.submit(fail, number),
    }
    for number, raised in enumerate(RAISED):
        error = ended(lambda number=number: WAYS[way](starts[what](number)))  # type: ignore[misc]
        assert not isinstance(error, TimeoutError) or isinstance(raised, TimeoutError), names(raised)
        if raised in PLAIN and not isinstance(raised, (StopIteration, StopAsyncIteration)):
            assert type(error) is type(raised), names(raised)
    assert raiser.fine() == 1


def test_every_exception_ends_a_stream(raiser: Any) -> None:
    for number, raised in enumerate(RAISED):
        error = ended(lambda number=number: list(raiser.items.stream(number)))  # type: ignore[misc]
        assert not isinstance(error, TimeoutError) or isinstance(raised, TimeoutError), names(raised)


def test_every_exception_ends_a_job(local: LocalCluster) -> None:
    jobs = local.launch_many([JobRequest(f"job-{n}", lambda n=n: fail(n)) for n in range(len(RAISED))])  # type: ignore[misc]
    infos = local.wait(jobs, timeout=PATIENCE, raise_on_failure=False)
    odd = [names(error) for error, info in zip(RAISED, infos, strict=True) if info.status is not JobStatus.FAILED]
    assert not odd


@pytest.mark.parametrize("way", WAYS)
def test_every_exception_ends_a_task_of_a_pool_with_a_queue(way: str) -> None:
    table = FutureTable()
    for number, raised in enumerate(RAISED):
        future = table.enter(str(number))
        table.apply([TaskOutcome(str(number), OutcomeKind.ERROR, data=pack_error(raised).data)])
        error = ended(lambda future=future: WAYS[way](future))  # type: ignore[misc]
        assert not isinstance(error, TimeoutError) or isinstance(raised, TimeoutError), names(raised)
    assert not table.unfinished


def test_every_exception_ends_the_wait_for_a_thread() -> None:
    for raised in RAISED:
        future: TaskFuture[Any] = TaskFuture()
        future.set_exception(raised)
        ended(lambda future=future: asyncio.run(awaited(future)))  # type: ignore[misc]

        def fail(raised: BaseException = raised) -> None:
            raise raised

        ended(lambda fail=fail: asyncio.run(awaited(sync.in_thread(fail))))  # type: ignore[misc]


@pytest.mark.parametrize("key", [3, ("t", 1), None, "", b"k", 2.5, [1], "a\udc80", "a\x1f2"])
def test_a_key_that_is_no_text_is_refused_and_leaves_nothing(key: Any, local: LocalCluster) -> None:
    with WorkerPool(local, 1, transport="queue") as pool:
        with pytest.raises(InvalidInput, match="key"):
            pool.submit_as(key, len, "abc")
        if not isinstance(key, list):
            with pytest.raises(InvalidInput, match="key"):
                pool.map_as(len, {key: "abc"})
        assert "0 unfinished" in repr(pool)


def test_a_task_that_cannot_be_entered_leaves_nothing() -> None:
    table = FutureTable()
    with pytest.raises(AttributeError):
        table.enter(3)  # type: ignore[arg-type]
    assert not table.unfinished


def test_an_argument_of_a_task_that_cannot_be_pickled_is_named(pool: WorkerPool) -> None:
    with pytest.raises(InvalidInput, match=r"^kwargs\['end'\]: .*generator"):
        pool.submit(print, 1, end=(i for i in range(3)))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"^args\[1\]: .*generator"):
        pool.submit(print, 1, (i for i in range(3)))
