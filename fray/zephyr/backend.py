"""Executing pipelines: on a cluster's file queues, or on threads."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import cloudpickle
import fsspec

from fray.cluster.current import current_cluster
from fray.cluster.here import here
from fray.cluster.storage import StorageCluster
from fray.types import ResourceConfig
from fray.zephyr.plan import run_plan
from fray.zephyr.progress import Progress
from fray.zephyr.release import Dataset, ListShard, ShardTask, TaskResult, compute_plan
from fray.zephyr.run import Journal, Run, Shard, ShardGivenUp, close_run, open_run
from fray.zephyr.worker import new_runner
from fray.zephyr.workers import Workers
from fray_agents.threads import task_environ
from fray_coordinator.clock import system_chance
from fray_coordinator.core import Core
from fray_coordinator.follow import Pace
from fray_coordinator.store.api import ABSENT
from fray_layouts.queue_names import Queues

DEFAULT_NAMESPACE = "default"
THREADS = 32
"""That read results, or run shards, at once: most of them wait for files."""

_executions: defaultdict[tuple[str, int], Iterator[int]] = defaultdict(lambda: itertools.count(1))
"""Numbers of the executions of each attempt of a job."""


class FrayBackend:
    """Runs the shards of a pipeline on jobs that take them from a queue in the cluster's storage.

    Args:
        cluster: by default the current one.
        max_parallelism: workers at once; fewer where there are fewer shards or less room.
        memory_per_worker: size; each worker has one core.
    """

    def __init__(
        self,
        cluster: StorageCluster | None = None,
        max_parallelism: int = 100,
        memory_per_worker: int | str = "2GB",
    ) -> None:
        self._cluster = cluster or current_cluster()
        self._max_parallelism = max_parallelism
        self._resources = ResourceConfig(cpu=1, memory=memory_per_worker)

    def execute(self, dataset: Dataset[Any], name: str | None = None) -> list[Any]:
        """Run a pipeline to its end and return its results, in order.

        A shard is run once, unless its worker dies on the way; what it raises is raised here after three tries.

        Args:
            name: of this execution, letters, digits, '-' and '_'. If one of that name was begun and did not come to
                its end, because its driver died or a shard failed, this goes on with it: finished shards are not run
                again. Names are shared by all programs of the namespace. By default it is the job's own, in the order
                of its executions, so that a job's next attempt goes on; outside of jobs it is a new one.

        Raises:
            Exception: what a shard's own code raised.
            ShardGivenUp: a shard killed every worker that ran it.
            JobFailed: no worker comes up; its message says why.
            InvalidInput: the earlier execution of that name had other shards.
        """
        namespace = task_environ().get("FRAY_NAMESPACE") or DEFAULT_NAMESPACE
        run = open_run(self._cluster, namespace, Queues.checked(name or _own_name()))
        driver = _Driver(self._cluster, run, Workers(self._cluster, run, self._max_parallelism, self._resources))
        results = driver.drive(dataset)
        self._cluster.run(lambda core: close_run(core, run))
        _remove(run.chunks)
        return results


class Backend:
    """Executes pipelines wherever the program runs."""

    @staticmethod
    def execute(
        dataset: Dataset[Any], max_parallelism: int = 100, memory: int | str = "2GB", name: str | None = None
    ) -> list[Any]:
        """On the cluster that FRAY_CLUSTER_SPEC names (in a job it always does), else on threads of this process.

        Args:
            max_parallelism: shards at once.
            memory: of each worker, on a cluster.
            name: see `FrayBackend.execute`; threads forget.
        """
        if (task_environ().get("FRAY_CLUSTER_SPEC") or "local") != "local":
            return FrayBackend(None, max_parallelism, memory).execute(dataset, name)
        most = min(max_parallelism, THREADS)
        with tempfile.TemporaryDirectory(prefix="fray-zephyr-") as chunks, ThreadPoolExecutor(most) as threads:

            def run_stage(name: str, title: str, tasks: list[ShardTask]) -> list[TaskResult]:
                return list(threads.map(lambda task: new_runner().execute(task, chunks, "run")[0], tasks))

            return _materialized(run_plan(compute_plan(dataset), run_stage))


class _Driver:
    """One execution's driver."""

    def __init__(self, cluster: StorageCluster, run: Run, workers: Workers) -> None:
        self._cluster = cluster
        self._run = run
        self._workers = workers
        self._queue = run.queue()
        self._core = cluster.run(_itself)
        self._journal = Journal(self._core, run)
        self._progress = Progress(run.name)
        self._token = self._core.chance.token()

    def drive(self, dataset: Dataset[Any]) -> list[Any]:
        with self._queue, self._progress:
            try:
                self._go_on()
                return _materialized(run_plan(compute_plan(dataset), self._run_stage))
            finally:
                self._workers.end()

    def _go_on(self) -> None:
        """Learn what earlier drivers left."""
        self._look()
        for shard, _ in self._letters():
            self._journal.given_up(shard)

    def _run_stage(self, name: str, title: str, tasks: list[ShardTask]) -> list[TaskResult]:
        count = len(tasks)
        self._progress.begin(name, title, count)
        if left := self._journal.left_of(name, count):
            self._push(name, tasks, left)
        pace = Pace(self._core)
        while len(done := self._journal.results.get(name, {})) < count:
            begun = time.monotonic()
            self._progress.advance(name, len(done))
            if self._workers.keep(count - len(done)):
                self._check_letters()
            if self._look():
                pace.changed()
                self._workers.progressed()
            self._raise_failure(name)
            self._rest(pace, time.monotonic() - begun)
        self._progress.advance(name, count)
        return [done[shard][0] for shard in range(count)]

    def _rest(self, pace: Pace, look_took: float) -> None:
        self._cluster.run(lambda core: pace.rest(look_took))

    def _push(self, name: str, tasks: list[ShardTask], left: list[int]) -> None:
        data = cloudpickle.dumps(tasks)
        key = self._run.tasks.object(sha256(data).hexdigest())
        self._cluster.run(lambda core: core.store.put(key, data, ABSENT))
        self._queue.push_many([Shard(name, shard, key, self._token) for shard in left])
        self._cluster.run(lambda core: self._journal.pushed(name, len(tasks)))

    def _look(self) -> bool:
        return self._cluster.run(lambda core: self._journal.look())

    def _raise_failure(self, name: str) -> None:
        error = self._journal.error(name)
        if error is not None:
            raise error

    def _check_letters(self) -> None:
        for shard, reason in self._letters():
            if shard.driver == self._token:
                place = f"shard {shard.number} of stage {shard.stage} of {self._run.name}"
                raise ShardGivenUp(f"{place} was given up: {reason}")

    def _letters(self) -> list[tuple[Shard, str]]:
        return [(letter.item, letter.reason) for letter in self._queue.letters()]


async def _itself(core: Core) -> Core:
    return core


def _own_name() -> str:
    mine = here()
    if mine is None:
        return f"zephyr-{system_chance().token()}"
    number = next(_executions[mine.job_id, mine.attempt])
    return f"zephyr-{sha256(mine.job_id.encode()).hexdigest()[:20]}-{number}"


def _materialized(shards: list[ListShard]) -> list[Any]:
    """The items of all shards; each may have to be read from storage."""
    with ThreadPoolExecutor(THREADS) as threads:
        parts: list[list[Any]] = list(threads.map(list, shards))
    return [item for part in parts for item in part]


def _remove(url: str) -> None:
    files, path = fsspec.core.url_to_fs(url)
    if files.exists(path):
        files.rm(path, recursive=True)
