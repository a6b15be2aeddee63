"""How outcomes complete the futures of a pool with a queue, in any order and shape."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from typing import Any

import pytest

from fray.futures import GeneratorFuture
from fray.pool import PoolClosed
from fray.pool.future_table import FutureTable
from fray_layouts.queue_keys import ItemPlace, SegmentName
from fray_layouts.queue_records import TaskOutcome, key_and_run, task_id
from fray_rpc.wire.serialization import pack_error


class Unreadable:
    """Its pickle can be written but not read."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __reduce__(self) -> tuple[Callable[..., None], tuple[type[BaseException]]]:
        return fail, (self.error,)


def fail(error: type[BaseException]) -> None:
    raise error("only there")


def value(key: str, of: object, kind: str = "value", number: int = 0) -> TaskOutcome:
    return TaskOutcome(key, kind, number, pickle.dumps(of))


@pytest.mark.parametrize("error", [ModuleNotFoundError, SystemExit])
@pytest.mark.parametrize("kind", ["value", "item"])
def test_an_unreadable_result_is_an_error_of_its_own_task_alone(kind: str, error: type[BaseException]) -> None:
    table = FutureTable()
    bad, good = table.enter("bad", yields=kind == "item"), table.enter("good")
    table.apply([value("bad", Unreadable(error), kind), TaskOutcome("bad", "end", 1), value("good", 7)])
    assert isinstance(bad.exception(0), error)
    assert good.result(0) == 7
    assert table.unfinished == 0


def test_an_error_that_cannot_be_read_here_is_its_own_tasks_error() -> None:
    table = FutureTable()
    future = table.enter("bad")
    table.apply([TaskOutcome("bad", "error", data=b"no pickle")])
    assert future.exception(0) is not None


def test_a_failed_key_has_the_future_of_its_latest_run_in_any_order_of_news() -> None:
    table = FutureTable()
    first = table.enter("key")
    table.apply([TaskOutcome("key", "error", data=pack_error(ValueError("first")).data)])
    again = table.enter(table.next_run("key"))
    assert table.futures == {"key": again}
    assert table.unfinished == 1
    table.apply([value("key", 1), value(task_id("key", 2), 2)])
    assert isinstance(first.exception(), ValueError)
    assert again.result() == 2
    later = FutureTable()
    later.apply([value(task_id("key", 2), 2), TaskOutcome("key", "error", data=pack_error(ValueError("first")).data)])
    assert later.futures["key"].result() == 2
    unsent = later.next_run("key")
    later.enter(unsent)
    later.withdraw([unsent], OSError("not sent"))
    assert later.futures["key"].result() == 2
    assert later.next_run("key") == unsent


@pytest.mark.parametrize("key", ["a", "", "a\x1f", "\x1f2", "a\x1fb", "a\x1f²"])
@pytest.mark.parametrize("run", [1, 2, 12])
def test_a_tasks_id_tells_key_and_run(key: str, run: int) -> None:
    if run > 1 and not key:
        return
    assert key_and_run(task_id(key, run)) == (key, run)


@pytest.mark.parametrize("yields", [False, True])
def test_a_future_that_is_not_done_has_no_exception_yet(yields: bool) -> None:
    future = FutureTable().enter("key", yields)
    assert (future.exception(), future.done()) == (None, False)


def test_a_generator_that_raised_before_it_was_known_is_one() -> None:
    table = FutureTable()
    table.apply(
        [TaskOutcome("key", "error", data=pack_error(ValueError("no")).data), TaskOutcome("key", "submitted", 1)]
    )
    future = table.enter("key", yields=True)
    assert isinstance(future, GeneratorFuture)
    with pytest.raises(ValueError, match="no"):
        next(future)


def test_a_closed_table_takes_nothing_more() -> None:
    table = FutureTable()
    open_then = table.enter("key")
    table.close("the pool was shut down")
    table.apply([value("late", 1)])
    assert isinstance(open_then.exception(0), PoolClosed)
    with pytest.raises(PoolClosed, match="shut down"):
        table.enter("late")


def test_a_task_that_could_not_be_submitted_may_be_submitted_again() -> None:
    table = FutureTable()
    first = table.enter("key")
    table.withdraw(["key"], OSError("away"))
    assert isinstance(first.exception(0), OSError)
    assert not table.enter("key").done()


class Result:
    """An object that can have weak references."""


def test_results_that_nobody_can_ask_for_by_key_are_not_kept() -> None:
    table = FutureTable()

    def taken(key: str, anonymous: bool) -> weakref.ref[Any]:
        future: Future[Any] = table.enter(key, anonymous=anonymous)
        table.apply([value(key, Result())])
        return weakref.ref(future.result(0))

    kept, gone = taken("mine", False), taken("0123", True)
    gc.collect()
    assert (kept() is not None, gone() is None) == (True, True)
    assert list(table.futures) == ["mine"]
    table.apply([TaskOutcome("0123", "item", 3), value("0123", 1)])  # it ran a second time
    assert (table.unfinished, list(table.futures)) == (0, ["mine"])


def test_one_of_several_drivers_knows_only_its_own_tasks() -> None:
    table = FutureTable(own_only=True)
    mine = table.enter("mine")
    table.apply([TaskOutcome("theirs", "submitted"), value("theirs", 1), value("mine", 2)])
    assert (mine.result(0), list(table.futures), table.unfinished) == (2, ["mine"], 0)


def test_a_cancelled_task_ends_for_everyone_who_waits_whatever_comes_later() -> None:
    asked: list[tuple[str, bool]] = []

    def take_back(task: str, wait: bool) -> bool:
        asked.append((task, wait))
        table.end_cancelled(task)
        return True

    table = FutureTable(take_back=take_back)
    future, series = table.enter("key"), table.enter("series", yields=True)
    assert not future.running()
    assert future.cancel()
    table.apply([TaskOutcome("key", "cancelled"), TaskOutcome("series", "cancelled"), value("key", 1)])
    table.end_cancelled("key")
    assert futures.wait([future, series], 0).not_done == set()
    assert isinstance(series, GeneratorFuture)
    for ended in (future, series):
        assert ended.cancelled()
        assert ended.cancel()
        with pytest.raises(futures.CancelledError):
            ended.result(0)
    with pytest.raises(futures.CancelledError):
        next(series)
    assert (asked, table.unfinished) == ([("key", True)], 0)


def test_a_task_that_has_ended_is_not_asked_for() -> None:
    table = FutureTable(take_back=lambda task, wait: pytest.fail("it has ended"))
    future = table.enter("key")
    table.apply([value("key", 1), TaskOutcome("key", "cancelled")])
    table.end_cancelled("key")
    assert not future.cancel()
    assert future.result(0) == 1


def test_a_task_that_waits_at_two_places_is_not_taken_back() -> None:
    """Two drivers have submitted its key at the same time, and the other item would still run."""
    table, (one, two) = FutureTable(), (ItemPlace(str(SegmentName(1.0, n, "abcdef", 3)), 2) for n in range(2))
    table.apply([TaskOutcome("key", "submitted", 0, str(one).encode()), TaskOutcome("odd", "submitted", 0, b"\xff")])
    assert (table.place_of("key"), table.place_of("odd")) == (one, None)
    table.note_place("key", one)
    assert table.place_of("key") == one
    table.note_place("key", two)
    table.note_place("key", one)
    assert table.place_of("key") is None
