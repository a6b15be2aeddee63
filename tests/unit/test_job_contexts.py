"""Job contexts inside one process: futures, generators, waiting, actors."""

from __future__ import annotations

import concurrent.futures
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fray.errors import ActorUnavailableError, InvalidInput
from fray.job import (
    JobContext,
    SyncContext,
    ThreadContext,
    create_job_ctx,
    fray_default_job_ctx,
    get_default_job_ctx,
)
from fray.types import JobStatus


@pytest.fixture(params=["sync", "threadpool"])
def context(request: pytest.FixtureRequest) -> JobContext:
    return create_job_ctx(request.param, max_workers=4)


@pytest.mark.parametrize("kind", ["sync", "threadpool", "auto"])
def test_what_programs_say_to_ray_means_nothing_inside_this_process(kind: str) -> None:
    context = create_job_ctx(kind, max_workers=2, memory=2**30, num_cpus=4, num_gpus=1, max_retries=3)
    assert context.get(context.run(abs, -1)) == 1


def count_to(limit: int) -> Iterator[int]:
    yield from range(limit)


def test_a_task_may_take_what_was_put(context: JobContext) -> None:
    kept = context.put([1, 2, 3])
    assert context.get(context.run(sum, context.get(kept))) == 6


def test_get_passes_plain_values_through(context: JobContext) -> None:
    assert context.get("plain") == "plain"


def test_get_of_a_list_gives_what_its_members_stand_for(context: JobContext) -> None:
    actor = context.create_actor(Counter)
    several = [context.run(abs, -1), "plain", actor.add.remote(5), context.put([7])]
    assert context.get(several) == [1, "plain", 5, [7]]


def test_get_of_a_list_raises_what_one_of_its_members_raised(context: JobContext) -> None:
    with pytest.raises(ValueError, match="seven"):
        context.get([context.run(abs, -1), context.run(int, "seven")])


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


def test_what_a_generator_raises_comes_after_its_values(context: JobContext) -> None:
    future = context.run(breaks)
    assert next(future) == 1
    with pytest.raises(OSError, match="torn"):
        next(future)


def test_a_generator_is_ready_while_it_still_runs() -> None:
    context = ThreadContext(max_workers=2)
    go_on = threading.Event()

    def slow() -> Iterator[str]:
        yield "first"
        go_on.wait()
        yield "second"

    future = context.run(slow)
    assert context.wait([future], num_returns=1) == ([future], [])
    assert next(future) == "first"
    go_on.set()
    assert list(future) == ["second"]


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


def test_a_task_that_runs_has_no_exception_yet() -> None:
    gate = threading.Event()
    with ThreadContext(1) as context:
        future = context.run(gate.wait)
        assert (future.exception(), future.done()) == (None, False)
        with pytest.raises(TimeoutError):
            future.exception(timeout=0.01)
        gate.set()
        assert future.exception(timeout=200) is None


def test_a_task_that_is_cancelled_in_time_does_not_run() -> None:
    gate, ran = threading.Event(), threading.Event()
    with ThreadContext(1) as context:
        holding: Any = context.run(gate.wait)
        waiting: Any = context.run(ran.set)
        assert waiting.cancel()
        gate.set()
        assert concurrent.futures.wait([holding, waiting], timeout=200).not_done == set()
        assert context.get(context.run(ran.is_set)) is False


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
    assert context.get_actor_status(actor) is JobStatus.RUNNING
    context.delete_actor(actor)
    assert context.get_actor_status(actor) is JobStatus.STOPPED
    with pytest.raises(ActorUnavailableError, match="deleted"):
        context.get(actor.add.remote())
    with pytest.raises(ActorUnavailableError, match="deleted"):
        add()
    assert context.create_actor(Counter, 20, name="weights").add() == 21
    context.delete_actor(actor)


def test_an_actor_is_an_object_like_others(context: JobContext) -> None:
    actor = context.get(context.put(context.create_actor(Counter)))
    assert context.get(actor.add.remote(5)) == 5


@pytest.mark.parametrize("kind", ["ray", "quantum"])
def test_kinds_that_there_are_not(kind: str) -> None:
    with pytest.raises(ValueError, match=kind):
        create_job_ctx(kind)


@pytest.mark.parametrize("number", [0, -1])
def test_a_number_of_threads_that_makes_no_sense(number: int) -> None:
    with pytest.raises(InvalidInput, match="max_workers"):
        create_job_ctx("threadpool", number)


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


def test_closing_ends_the_threads() -> None:
    with ThreadContext(2) as context:
        used = context.run(threading.current_thread).result()
    used.join(200)
    assert not used.is_alive()


def test_the_default_is_the_enclosing_one() -> None:
    chosen = SyncContext()
    with fray_default_job_ctx(chosen):
        assert get_default_job_ctx() is chosen
    assert isinstance(get_default_job_ctx(), ThreadContext)


def test_all_who_ask_for_the_default_share_one() -> None:
    together = threading.Barrier(8)

    def ask() -> JobContext:
        together.wait()
        return get_default_job_ctx()

    with ThreadPoolExecutor(8) as threads:
        asked = list(threads.map(lambda _: ask(), range(8)))
    assert {id(context) for context in asked} == {id(get_default_job_ctx())}
    with get_default_job_ctx() as context:
        context.create_actor(Counter, name="shared", get_if_exists=True).add()
    assert get_default_job_ctx().create_actor(Counter, name="shared", get_if_exists=True).add() == 2


def test_jobs_that_share_a_process_share_no_default(monkeypatch: pytest.MonkeyPatch) -> None:
    outside = get_default_job_ctx()
    monkeypatch.setenv("FRAY_JOB_ID", "job-1")
    assert get_default_job_ctx() is get_default_job_ctx() is not outside


def test_a_fork_has_a_default_of_its_own() -> None:
    get_default_job_ctx().run(abs, -1).result()  # has threads, which no fork copies
    child = os.fork()
    if not child:
        code: Any = get_default_job_ctx().run(abs, -7).result(200)
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
