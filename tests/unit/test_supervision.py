"""Every thread and task of Fray is supervised: if it fails, others go on, or get the reason; none ends silently."""

from __future__ import annotations

import ast
import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from fray import sync
from fray_coordinator import concurrency
from fray_coordinator.concurrency import keep_running, start_task
from fray_runtime import threads
from fray_runtime.threads import start_loop, start_thread
from tests.support.sources import trees
from tests.support.waiting import PATIENCE

STARTERS = (
    *("Thread", "Timer", "start_new_thread", "ThreadPoolExecutor", "ProcessPoolExecutor", "run_in_executor"),
    *("create_task", "ensure_future", "run_coroutine_threadsafe", "TaskGroup"),
)

AWAITED = {
    "agents/fray_agents/agent/agent.py": (3, "`run` waits for both; `_kill_tasks` waits for the ends of tasks"),
    "agents/fray_agents/agent/driver.py": (1, "`_hold` awaits it"),
    "agents/fray_agents/agent/gang_runner.py": (1, "the watch catches every exception itself"),
    "agents/fray_agents/agent/hint_listener.py": (1, "the thread that asks for the keys waits"),
    "agents/fray_agents/agent/problems.py": (1, "`run_until_first_ends` waits, and ends them all together"),
    "agents/fray_agents/agent/replica_runner.py": (3, "`_started` and `_task_exit` wait for all of them"),
    "agents/fray_agents/environments/python_env.py": (1, "it reports only, and is awaited at the end of the block"),
    "runtime/fray_runtime/directories.py": (2, "the caller awaits each call"),
    "rpc/fray_rpc/server/event_loop.py": (3, "`_end` passes each coroutine's end on; `drain` waits"),
    "runtime/fray_runtime/threads.py": (2, "the supervision itself"),
    "coordinator/fray_coordinator/concurrency.py": (2, "the supervision itself, and `map_concurrently` waits for all"),
    "coordinator/fray_coordinator/per_process.py": (1, "each user waits; after a failure the next one opens it again"),
    "coordinator/fray_coordinator/queue/delivery.py": (1, "the caller awaits it, or gives its result back"),
    "coordinator/fray_coordinator/queue/held_segments.py": (2, "the caller awaits it, shielded"),
    "coordinator/fray_coordinator/queue/segment_lease.py": (1, "everyone whose change it writes awaits it"),
    "coordinator/fray_coordinator/reconcile/background_work.py": (
        1,
        "its end is noted as a problem, and it starts again",
    ),
    "coordinator/fray_coordinator/role_election.py": (1, "`renew_during` waits for it"),
    "coordinator/fray_coordinator/store/gcs_credentials.py": (
        1,
        "requests wait for it; after a failure the next one renews",
    ),
    "coordinator/fray_coordinator/store/local.py": (1, "the caller awaits it"),
    "fray/actor/storage_actors.py": (2, "`_wait` waits for both"),
    "fray/cluster/pulling.py": (1, "the generator awaits each part"),
    "fray/backends/ray/attempt_run.py": (1, "`run` awaits all"),
    "fray/backends/iris/actors.py": (1, "each call has a future"),
    "fray/job/in_process.py": (2, "each task and call has a future, which gets every exception"),
    "fray/sync.py": (1, "each coroutine has a future, which gets every exception"),
    "fray/zephyr/backend.py": (2, "the block waits for all"),
}
"""Modules that start threads or tasks otherwise than supervised: how many of them, and who waits for them."""


def starts() -> Iterator[str]:
    """The module of each place that starts a thread or a task."""
    for path, tree in trees(STARTERS):
        for node in ast.walk(tree):
            called = node.func if isinstance(node, ast.Call) else None
            if getattr(called, "attr", getattr(called, "id", "")) in STARTERS:
                yield path


def test_threads_and_tasks_are_started_supervised_or_somebody_waits_for_them() -> None:
    found, known = Counter(starts()), {module: count for module, (count, _) in AWAITED.items()}
    assert found == known, "start it with fray_runtime.threads or fray_coordinator.concurrency, or say who waits for it"


def test_the_failure_of_a_thread_reaches_those_who_depend_on_it() -> None:
    told: list[BaseException] = []

    def work() -> None:
        raise SystemExit("gone")

    start_thread(work, "t", told.append).join(PATIENCE)
    assert [str(error) for error in told] == ["gone"]


def test_a_loop_that_fails_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LOOP_PAUSE", 0.0)
    turns: list[int] = []

    def loop() -> None:
        turns.append(1)
        if len(turns) < 3:
            raise KeyboardInterrupt

    start_loop(loop, "l").join(PATIENCE)
    assert len(turns) == 3


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_an_exception_that_ends_event_loops_does_not_end_the_background_loop(error: BaseException) -> None:
    async def fail() -> None:
        raise error

    async def answer() -> int:
        return 5

    with pytest.raises(type(error)):
        sync.run(fail())
    assert sync.start(answer()).result(PATIENCE) == 5


async def test_the_failure_of_a_task_reaches_those_who_depend_on_it() -> None:
    told: asyncio.Queue[BaseException] = asyncio.Queue()

    async def fail() -> None:
        raise LookupError("gone")

    start_task(fail(), told.put_nowait)
    assert str(await told.get()) == "gone"


async def test_work_in_the_background_that_fails_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "LOOP_PAUSE", 0.0)
    turns: list[int] = []

    async def work() -> int:
        turns.append(1)
        if len(turns) < 3:
            raise LookupError
        return len(turns)

    assert await keep_running(work) == 3
