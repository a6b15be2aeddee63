"""Job contexts inside one process: futures, generators, waiting, actors."""

from __future__ import annotations

import concurrent.futures
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fray.errors import InvalidInput
from fray.job import (
    JobContext,
    SyncContext,
    ThreadContext,
    create_job_ctx,
    fray_default_job_ctx,
    get_default_job_ctx,
)
from tests.behaviour.job_contexts import *  # noqa: F403
from tests.behaviour.job_contexts import Counter


@pytest.fixture(params=["sync", "threadpool"])
def context(request: pytest.FixtureRequest) -> JobContext:
    return create_job_ctx(request.param, max_workers=4)


@pytest.mark.parametrize("kind", ["sync", "threadpool", "auto"])
def test_options_for_ray_mean_nothing_inside_this_process(kind: str) -> None:
    context = create_job_ctx(kind, max_workers=2, memory=2**30, num_cpus=4, num_gpus=1, max_retries=3)
    assert context.get(context.run(abs, -1)) == 1


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


def test_a_kind_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="quantum"):
        create_job_ctx("quantum")


@pytest.mark.parametrize("number", [0, -1, "2", None])
def test_a_number_of_threads_that_makes_no_sense(number: Any) -> None:
    with pytest.raises(InvalidInput, match="max_workers"):
        create_job_ctx("threadpool", number)


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


def test_all_users_of_the_default_share_one() -> None:
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
    get_default_job_ctx().run(abs, -1).result()  # has threads, which a fork does not copy
    child = os.fork()
    if not child:
        code: Any = get_default_job_ctx().run(abs, -7).result(200)
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
