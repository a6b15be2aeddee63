"""Worker pools from the user's side, by direct calls and through a queue, on real worker processes."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

import cloudpickle
import pytest

from fray.cluster import StorageCluster
from fray.job import ClusterContext
from fray.pool import PoolClosed, PoolNotFound, TaskKillsWorkers, WorkerPool, diagnosis
from fray.rpc import ActorEndpoint, ClusterResolver
from fray.types import EnvironmentConfig, JobStatus, ResourceConfig
from fray_coordinator.errors import StoreUnavailable
from fray_layouts.errors import InvalidInput
from fray_rpc.errors import RemoteTraceback
from tests.support import actors
from tests.support.waiting import wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SMALL = ResourceConfig(cpu=0.1)
QUEUE = pytest.param("queue", marks=pytest.mark.slow)


CLUSTER = "storage"


@pytest.fixture(scope="module", params=["direct", QUEUE])
def pool(request: pytest.FixtureRequest, cluster: StorageCluster) -> Iterator[WorkerPool]:
    with WorkerPool(cluster, 2, SMALL, transport=request.param) as opened:
        opened.wait_for_workers(timeout=200)
        yield opened


@pytest.fixture(scope="module")
def context(cluster: StorageCluster) -> Iterator[ClusterContext]:
    """A context with one worker that tests share if they do not change it."""
    with ClusterContext(1, cluster, SMALL) as opened:
        yield opened


def double(number: int) -> int:
    return 2 * number


def wait_for(gate: Path) -> None:
    while not gate.exists():
        time.sleep(0.01)


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_results_are_in_the_order_of_the_items(pool: WorkerPool) -> None:
    assert pool.size == 2
    assert [future.result(200) for future in pool.map(double, range(300))] == list(range(0, 600, 2))


def test_tasks_run_in_other_processes(pool: WorkerPool) -> None:
    assert os.getpid() not in {future.result(200) for future in [pool.submit(os.getpid) for _ in range(20)]}


def test_a_closure_is_captured_when_it_is_submitted(pool: WorkerPool) -> None:
    seen = [1]
    first = pool.submit(lambda: list(seen))
    seen.append(2)
    assert (first.result(200), pool.submit(lambda: list(seen)).result(200)) == ([1], [1, 2])


def test_a_large_function_runs_as_any_other(pool: WorkerPool) -> None:
    weights = os.urandom(300_000)
    futures = [pool.submit(lambda number: (number, len(weights)), number) for number in range(3)]
    assert [future.result(200) for future in futures] == [(0, 300_000), (1, 300_000), (2, 300_000)]


def test_an_exception_of_a_task_keeps_its_type_and_its_traceback(pool: WorkerPool) -> None:
    error = pool.submit(int, "seven").exception(200)
    assert isinstance(error, ValueError)
    assert isinstance(error.__cause__, RemoteTraceback)


def test_a_task_that_runs_has_no_exception_yet(pool: WorkerPool, tmp_path: Path) -> None:
    future = pool.submit(wait_for, tmp_path / "gate")
    assert (future.exception(), future.done()) == (None, False)
    (tmp_path / "gate").touch()
    assert future.exception(200) is None


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_exception_of_any_kind_ends_the_task_and_not_its_worker(
    pool: WorkerPool, error: type[BaseException]
) -> None:
    def raises() -> None:
        raise error("enough")

    with pytest.raises(RuntimeError, match=f"{error.__name__}: enough"):
        pool.submit(raises).result(200)
    assert pool.submit(double, 1).result(200) == 2


def test_arguments_that_cannot_be_pickled_are_named_at_once(pool: WorkerPool) -> None:
    with pytest.raises(InvalidInput, match="args"):
        pool.submit(id, threading.Lock())


def test_a_result_that_cannot_be_pickled_is_the_tasks_error(pool: WorkerPool) -> None:
    with pytest.raises(Exception, match="pickle"):
        pool.submit(threading.Lock).result(200)


def test_futures_come_as_they_are_done(pool: WorkerPool, tmp_path: Path) -> None:
    slow: Future[Any] = pool.submit(wait_for, tmp_path / "gate")
    quick: Future[Any] = pool.submit(double, 1)
    done = pool.as_completed([slow, quick], timeout=200)
    assert next(done) is quick
    (tmp_path / "gate").touch()
    assert list(done) == [slow]


@pytest.mark.parametrize("pool", ["direct", pytest.param("queue", marks=pytest.mark.slow)], indirect=True)
def test_a_dead_workers_task_runs_elsewhere(pool: WorkerPool, tmp_path: Path) -> None:
    died = tmp_path / "died"

    def die_once() -> str:
        if not died.exists():
            died.touch()
            kill_me()
        return "alive"

    others = pool.map(double, range(20))
    assert pool.submit(die_once).result(200) == "alive"
    assert [future.result(200) for future in others] == list(range(0, 40, 2))


@pytest.mark.parametrize(
    ("pool", "why"),
    [
        ("direct", "3 workers died while they ran it, the last because: signalled: killed by SIGKILL"),
        pytest.param("queue", None, marks=pytest.mark.slow),
    ],
    indirect=["pool"],
)
def test_a_task_that_kills_every_worker_is_given_up_and_its_neighbours_are_not(
    pool: WorkerPool, why: str | None
) -> None:
    neighbours = pool.map(double, range(10))
    poison = pool.submit(kill_me)
    neighbours += pool.map(double, range(10))
    with pytest.raises(TaskKillsWorkers, match=why):
        poison.result(110)
    assert [future.result(200) for future in neighbours] == [*range(0, 20, 2)] * 2


def test_a_generators_values_are_its_result(pool: WorkerPool) -> None:
    def count() -> Iterator[int]:
        yield from range(3)

    assert list(pool.submit(count).result(200)) == [0, 1, 2]


@pytest.mark.slow
def test_an_elastic_pool_starts_workers_when_there_are_tasks(cluster: StorageCluster) -> None:
    with WorkerPool(cluster, (0, 2), SMALL) as pool:
        assert pool.size == 0
        assert [future.result(200) for future in pool.map(double, range(4))] == [0, 2, 4, 6]
        assert 1 <= pool.size <= 2


def test_a_task_that_a_hasty_shutdown_abandons_raises_pool_closed(cluster: StorageCluster) -> None:
    pool = WorkerPool(cluster, 1, SMALL)
    running = pool.submit(time.sleep, 60.0)
    pool.shutdown(wait=False)
    with pytest.raises(PoolClosed):
        running.result(200)
    with pytest.raises(PoolClosed):
        pool.submit(double, 1)


@pytest.mark.parametrize("number", [0, (3, 2), (1, 2, 3), 1.5, None, "3", ("1", 2)])
def test_a_size_that_makes_no_sense(cluster: StorageCluster, number: object) -> None:
    with pytest.raises(InvalidInput, match="num_workers"):
        WorkerPool(cluster, number)  # type: ignore[arg-type]


def test_the_context_on_a_cluster(context: ClusterContext) -> None:
    kept = context.put(list(range(1000)))
    assert context.get(context.run(sum, kept)) == 499_500
    assert context.get("plain") == "plain"
    futures = [context.run(double, number) for number in range(5)]
    ready, pending = context.wait(futures, num_returns=2)
    assert (len(ready), len(pending)) == (2, 3)
    assert context.get([*futures, kept]) == [0, 2, 4, 6, 8, list(range(1000))]
    actor = context.create_actor(actors.Counter, 3, name="counter")
    assert context.get(actor.add.remote(4)) == 7
    with pytest.raises(ValueError, match="counter"):
        context.create_actor(actors.Counter, name="counter")
    again = context.create_actor(actors.Counter, name="counter", get_if_exists=True)
    assert again.add(1) == 8
    assert context.get_actor_status(actor) is JobStatus.RUNNING
    context.delete_actor(actor)
    wait_until(lambda: context.get_actor_status(actor) is JobStatus.STOPPED)


def test_actors_tasks_and_objects_on_a_cluster_can_be_waited_for_together(context: ClusterContext) -> None:
    actor = context.create_actor(actors.Counter)
    calls = [actor.add.remote() for _ in range(10)]
    ready, pending = context.wait(calls, num_returns=5)
    assert (len(ready), len(pending)) == (5, 5)
    assert {id(call) for call in ready + pending} == {id(call) for call in calls}
    assert [context.get(call) for call in calls] == list(range(1, 11))
    mixed = [actor.fail.remote("no"), context.run(double, 4), context.put("kept")]
    failed, task, kept = context.wait(mixed, num_returns=3)[0]
    assert (context.get(task), context.get(kept)) == (8, "kept")
    with pytest.raises(LookupError, match="no"):
        context.get(failed)
    assert context.get(context.get(context.put(actor)).add.remote()) == 11


def test_waiting_ends_when_an_actor_is_gone_for_good(context: ClusterContext) -> None:
    actor = context.create_actor(actors.Counter)
    actor.add()
    calls = [actor.die.remote()]
    assert context.wait(calls) == (calls, [])
    with pytest.raises(ConnectionError, match="died"):
        context.get(calls[0])


def tripled(context: ClusterContext, number: int) -> int:
    """A task that submits, stores and closes."""
    with context:
        total: int = context.get(context.run(double, number)) + context.get(context.put(number))
        return total


@pytest.mark.slow
def test_a_task_uses_the_context_that_it_is_given_and_cannot_end_its_pool(cluster: StorageCluster) -> None:
    with ClusterContext(1, cluster, SMALL) as context:
        kept = context.put("kept")
        tasks = [context.run(tripled, context, number) for number in (1, 2)]
        assert [context.get(task) for task in tasks] == [3, 6]
        lent = pickle.loads(cloudpickle.dumps(context))
        assert lent is not context
        assert pickle.loads(cloudpickle.dumps(lent)) is lent
        assert lent.get(lent.run(double, 5)) == 10
        lent.close()
        assert context.get(kept) == "kept"
        assert context.get(context.run(double, 4)) == 8
    with pytest.raises(PoolNotFound):
        lent.run(double, 1)


_SHARED = """
import os
from fray.cluster import LocalCluster
from fray.job import get_default_job_ctx

with LocalCluster() as cluster:
    os.environ["FRAY_CLUSTER_SPEC"] = cluster.root
    print(len({get_default_job_ctx().run(os.getpid).result(200) for _ in range(3)}), len(cluster.list_jobs()))
"""


@pytest.mark.slow
def test_all_default_contexts_on_a_cluster_use_one_pool() -> None:
    ended = subprocess.run([sys.executable, "-c", _SHARED], capture_output=True, text=True, check=True)
    assert ended.stdout == "1 1\n"
    assert "Traceback" not in ended.stderr


def test_a_generator_on_a_cluster_yields_while_it_runs(context: ClusterContext, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def slowly() -> Iterator[int]:
        yield 1
        while not gate.exists():
            time.sleep(0.01)
        yield 2

    future = context.run(slowly)
    assert context.wait([future]) == ([future], [])
    assert next(future) == 1
    gate.touch()
    assert list(future) == [2]


@pytest.mark.parametrize("transport", ["direct", "queue"])
def test_a_wait_that_times_out_says_why(
    cluster: StorageCluster,
    transport: Literal["direct", "queue"],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diagnosis, "WARN_AFTER", 0.0)
    why = r"2 pending \(no live agent .* could ever run it: .*cpu: 5000 cores wanted"
    pool = WorkerPool(cluster, 2, ResourceConfig(cpu=5000), transport=transport)
    with pytest.raises(TimeoutError, match=f"0 of 2 .*{why}"):
        pool.wait_for_workers(timeout=0.1)
    future = pool.submit(double, 1)
    wait_until(lambda: re.search(f"0 of 2 workers are up: {why}", caplog.text))
    with pytest.raises(TimeoutError, match=f"no result after 0 s: 0 of 1 tasks done, 0 of 2 workers up .{why}"):
        future.result(timeout=0)
    with pytest.raises(TimeoutError, match=f"1 of 1 tasks have not ended after 0.1 s: 0 of 1 tasks done.*{why}"):
        list(pool.as_completed([future], timeout=0.1))
    pool.shutdown(wait=False)
    with pytest.raises(PoolClosed):
        future.result()


@pytest.mark.parametrize("transport", ["direct", QUEUE])
def test_more_workers_than_the_pool_wants_never_come(
    cluster: StorageCluster, transport: Literal["direct", "queue"]
) -> None:
    with WorkerPool(cluster, 1, SMALL, transport=transport) as pool:
        pool.wait_for_workers(timeout=200)
        with pytest.raises(TimeoutError, match=r"1 of 5 .* is to have only 1: resize it"):
            pool.wait_for_workers(5, timeout=0.1)


@pytest.mark.slow
def test_a_resized_pool_gets_more_workers_or_ends_spare_ones(
    cluster: StorageCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fray.pool.worker_pool.SPARE_SECONDS", 0.2)
    with WorkerPool(cluster, 1, SMALL) as pool:
        pool.resize(3)
        pool.wait_for_workers(3, timeout=200)
        pool.resize((1, 3))
        wait_until(lambda: pool.size == 1)
        assert pool.submit(double, 1).result(200) == 2
        with pytest.raises(InvalidInput, match="num_workers"):
            pool.resize(0)


def test_options_that_only_a_queue_has_are_refused_by_name(cluster: StorageCluster) -> None:
    with WorkerPool(cluster, (0, 1), SMALL) as pool:
        with pytest.raises(InvalidInput, match="`put`"):
            pool.put(1)
        with pytest.raises(InvalidInput, match="`futures`"):
            pool.futures  # noqa: B018
    with pytest.raises(InvalidInput, match="name_prefix"):
        WorkerPool(cluster, 1, SMALL, name_prefix="a.b", transport="queue")


@pytest.mark.slow
def test_a_worker_whose_job_has_ended_is_replaced(cluster: StorageCluster) -> None:
    with WorkerPool(cluster, 1, SMALL) as pool:
        first = pool.submit(os.getpid).result(200)
        (job,) = [job for job in cluster.list_jobs() if job.name.startswith(pool.name)]
        cluster.terminate(job.job_id)
        cluster.wait(job.job_id)
        assert pool.submit(os.getpid).result(200) != first


@pytest.mark.slow
def test_a_pool_whose_workers_end_again_and_again_says_why(cluster: StorageCluster) -> None:
    broken = EnvironmentConfig(env_vars={"PYTHONHOME": "/nonexistent"})
    with WorkerPool(cluster, 1, SMALL, broken) as pool:
        task = pool.submit(double, 1)
        with pytest.raises(PoolClosed, match=rf"{pool.name}.*exited"):
            pool.wait_for_workers(timeout=200)
        assert isinstance(task.exception(200), PoolClosed)
        assert len([job for job in cluster.list_jobs() if job.name.startswith(pool.name)]) == 3


def test_workers_are_found_again_after_the_storage_was_away(
    cluster: StorageCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, away = ClusterResolver.find, threading.Event()

    def unavailable(resolver: ClusterResolver, name: str) -> list[ActorEndpoint]:
        away.set()
        raise StoreUnavailable("the storage is away")

    with WorkerPool(cluster, 1, SMALL) as pool:
        first = pool.submit(os.getpid).result(200)
        monkeypatch.setattr(ClusterResolver, "find", unavailable)
        os.kill(first, signal.SIGKILL)
        task = pool.submit(os.getpid)
        assert away.wait(200)
        monkeypatch.setattr(ClusterResolver, "find", find)
        assert task.result(200) != first
