"""Job contexts inside one process: futures, generators, waiting, actors."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from fray.job import (
    JobContext,
    SyncContext,
    ThreadContext,
    create_job_ctx,
    fray_default_job_ctx,
    get_default_job_ctx,
)


@pytest.fixture(params=["sync", "threadpool"])
def context(request: pytest.FixtureRequest) -> JobContext:
    return create_job_ctx(request.param, max_workers=4)


def count_to(limit: int) -> Iterator[int]:
    yield from range(limit)


def test_a_task_may_take_what_was_put(context: JobContext) -> None:
    kept = context.put([1, 2, 3])
    assert context.get(context.run(sum, context.get(kept))) == 6


def test_get_passes_plain_values_through(context: JobContext) -> None:
    assert context.get("plain") == "plain"


def test_what_a_task_raises_is_raised_by_get(context: JobContext) -> None:
    future = context.run(int, "seven")
    with pytest.raises(ValueError, match="seven"):
        context.get(future)


def test_exactly_as_many_are_ready_as_were_asked_for(context: JobContext) -> None:
    futures = [context.run(abs, -number) for number in range(5)]
    ready, pending = context.wait(futures, num_returns=2)
    assert (len(ready), len(pending)) == (2, 3)
    assert {id(future) for future in ready + pending} == {id(future) for future in futures}


def test_asking_for_more_than_there_are_waits_for_all(context: JobContext) -> None:
    futures = [context.run(abs, -number) for number in range(3)]
    ready, pending = context.wait(futures, num_returns=7)
    assert (sorted(map(context.get, ready)), pending) == ([0, 1, 2], [])


def test_a_generator_yields_by_next_and_then_stops(context: JobContext) -> None:
    future = context.run(count_to, 2)
    assert [context.get(next(future)), context.get(next(future))] == [0, 1]  # type: ignore[call-overload]
    with pytest.raises(StopIteration):
        next(future)  # type: ignore[call-overload]


def test_get_of_a_generator_gives_all_its_values(context: JobContext) -> None:
    future = context.run(count_to, 4)
    next(future)  # type: ignore[call-overload]
    assert context.get(future) == [0, 1, 2, 3]


def test_what_a_generator_raises_comes_after_its_values(context: JobContext) -> None:
    def breaks() -> Iterator[int]:
        yield 1
        raise OSError("torn")

    future = context.run(breaks)
    assert next(future) == 1  # type: ignore[call-overload]
    with pytest.raises(OSError, match="torn"):
        next(future)  # type: ignore[call-overload]


def test_a_generator_is_ready_while_it_still_runs() -> None:
    context = ThreadContext(max_workers=2)
    go_on = threading.Event()

    def slow() -> Iterator[str]:
        yield "first"
        go_on.wait()
        yield "second"

    future = context.run(slow)
    assert context.wait([future], num_returns=1) == ([future], [])
    assert next(future) == "first"  # type: ignore[call-overload]
    go_on.set()
    assert list(future) == ["second"]  # type: ignore[call-overload]


def test_a_generator_on_the_callers_thread_runs_step_by_step() -> None:
    steps: list[int] = []

    def noting() -> Iterator[int]:
        for number in range(3):
            steps.append(number)
            yield number

    future = SyncContext().run(noting)
    next(future)  # type: ignore[call-overload]
    assert steps == [0]


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


def test_an_actors_name_is_given_once(context: JobContext) -> None:
    first = context.create_actor(Counter, name="curriculum")
    again = context.create_actor(Counter, name="curriculum", get_if_exists=True)
    context.get(first.add.remote())
    assert context.get(again.add.remote()) == 2
    with pytest.raises(ValueError, match="curriculum"):
        context.create_actor(Counter, name="curriculum")


def test_an_actor_is_an_object_like_others(context: JobContext) -> None:
    actor = context.get(context.put(context.create_actor(Counter)))
    assert context.get(actor.add.remote(5)) == 5


@pytest.mark.parametrize("kind", ["ray", "quantum"])
def test_kinds_that_there_are_not(kind: str) -> None:
    with pytest.raises(ValueError, match=kind):
        create_job_ctx(kind)


def test_the_default_is_the_enclosing_one() -> None:
    chosen = SyncContext()
    with fray_default_job_ctx(chosen):
        assert get_default_job_ctx() is chosen
    assert isinstance(get_default_job_ctx(), ThreadContext)
