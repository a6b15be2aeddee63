"""What job contexts do on every backend; a module of tests has a fixture `context` and imports all of this."""

from __future__ import annotations

import concurrent.futures
import sys
import threading
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

from fray.errors import ActorUnavailableError
from fray.job import JobContext
from fray.types import JobStatus
from tests.support.waiting import wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def count_to(limit: int) -> Iterator[int]:
    yield from range(limit)


def test_a_task_may_take_an_object_that_was_put(context: JobContext) -> None:
    kept = context.put([1, 2, 3])
    assert context.get(context.run(sum, context.get(kept))) == 6


def test_get_passes_plain_values_through(context: JobContext) -> None:
    assert context.get("plain") == "plain"


def test_get_of_a_list_gives_the_values_of_its_members(context: JobContext) -> None:
    actor = context.create_actor(Counter)
    several = [context.run(abs, -1), "plain", actor.add.remote(5), context.put([7])]
    assert context.get(several) == [1, "plain", 5, [7]]


def test_get_of_a_list_raises_the_error_of_a_member(context: JobContext) -> None:
    with pytest.raises(ValueError, match="seven"):
        context.get([context.run(abs, -1), context.run(int, "seven")])


def test_get_raises_the_exception_of_the_task(context: JobContext) -> None:
    future = context.run(int, "seven")
    with pytest.raises(ValueError, match="seven"):
        context.get(future)


def test_exactly_as_many_are_ready_as_were_asked_for(context: JobContext) -> None:
    futures = [context.run(abs, -number) for number in range(5)]
    ready, pending = context.wait(futures, num_returns=2)
    assert (len(ready), len(pending)) == (2, 3)
    assert {id(future) for future in ready + pending} == {id(future) for future in futures}


def test_asking_for_more_than_there_are_waits_for_all(context: JobContext) -> None:
    futures: list[Any] = [context.run(abs, -number) for number in range(3)]
    ready, pending = context.wait(futures, num_returns=7)
    assert sorted(future.result() for future in ready) == [0, 1, 2]
    assert pending == []


def test_a_generator_yields_by_next_and_then_stops(context: JobContext) -> None:
    future = context.run(count_to, 2)
    assert [context.get(next(future)), context.get(next(future))] == [0, 1]
    with pytest.raises(StopIteration):
        next(future)


def test_get_of_a_generator_gives_all_its_values(context: JobContext) -> None:
    future = context.run(count_to, 4)
    next(future)
    assert context.get(future) == [0, 1, 2, 3]


def test_an_exception_of_a_generator_comes_after_its_values(context: JobContext) -> None:
    future = context.run(breaks)
    assert next(future) == 1
    with pytest.raises(OSError, match="torn"):
        next(future)


def breaks() -> Iterator[int]:
    yield 1
    raise OSError("torn")


def test_a_broken_generator_raises_the_same_however_often_it_is_asked(context: JobContext) -> None:
    future = context.run(breaks)
    for _ in range(2):
        with pytest.raises(OSError, match="torn"):
            future.result()
    assert isinstance(future.exception(), OSError)


def test_a_generators_future_is_one_that_the_standard_library_can_wait_for(context: JobContext) -> None:
    future = context.run(count_to, 3)
    assert concurrent.futures.wait([future], timeout=200).done == {future}
    assert future.done()
    assert future.exception() is None
    assert list(future) == [0, 1, 2]


class Counter:
    def __init__(self, start: int = 0) -> None:
        self.value = start
        self.inside = 0

    def add(self, amount: int = 1) -> int:
        self.inside += 1
        assert self.inside == 1, "two calls at once"
        self.value += amount
        self.inside -= 1
        return self.value


def test_an_actors_calls_run_in_order_one_at_a_time(context: JobContext) -> None:
    actor = context.create_actor(Counter, 10)
    futures = [actor.add.remote() for _ in range(50)]
    assert [context.get(future) for future in futures] == list(range(11, 61))
    assert actor.add(amount=0) == 60


def test_tasks_actors_and_objects_can_be_waited_for_together(context: JobContext) -> None:
    actor = context.create_actor(Counter)
    mixed = [actor.add.remote(), context.run(abs, -1), context.put("kept"), context.put("kept"), actor.add.remote()]
    ready, pending = context.wait(mixed, num_returns=2)
    assert (len(ready), len(pending)) == (2, 3)
    assert sorted(map(id, ready + pending)) == sorted(map(id, mixed))
    ready, pending = context.wait(mixed, num_returns=5)
    assert ([context.get(ref) for ref in ready], pending) == ([1, 1, "kept", "kept", 2], [])


def test_an_actors_name_is_given_once(context: JobContext) -> None:
    first = context.create_actor(Counter, name="curriculum")
    again = context.create_actor(Counter, name="curriculum", get_if_exists=True)
    context.get(first.add.remote())
    assert context.get(again.add.remote()) == 2
    with pytest.raises(ValueError, match="curriculum"):
        context.create_actor(Counter, name="curriculum")


def test_a_deleted_actor_answers_no_call_and_its_name_is_free(context: JobContext) -> None:
    actor = context.create_actor(Counter, 10, name="weights")
    add = actor.add
    assert (actor.add(), context.get_actor_status(actor)) == (11, JobStatus.RUNNING)
    context.delete_actor(actor)
    wait_until(lambda: context.get_actor_status(actor) is JobStatus.STOPPED)
    with pytest.raises(ActorUnavailableError, match="deleted"):
        context.get(actor.add.remote())
    with pytest.raises(ActorUnavailableError, match="deleted"):
        add()
    assert context.create_actor(Counter, 20, name="weights").add() == 21
    context.delete_actor(actor)


def test_an_actor_is_an_object_like_others(context: JobContext) -> None:
    actor = context.get(context.put(context.create_actor(Counter)))
    assert context.get(actor.add.remote(5)) == 5


def test_a_context_that_was_closed_begins_anew(context: JobContext) -> None:
    with context as entered:
        assert entered is context
        counter = context.create_actor(Counter, name="stays")
        before = context.run(threading.get_ident)
        first = context.get(before)
    assert context.get(before) == first
    assert context.get(context.run(abs, -1)) == 1
    assert context.get(counter.add.remote()) == 1
    assert context.create_actor(Counter, name="stays", get_if_exists=True).add() == 2
    context.close()
