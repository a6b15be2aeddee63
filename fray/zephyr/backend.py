"""The backends that execute pipelines: `FrayBackend` on a cluster's file queues, `Backend` there or on threads."""

import itertools
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

from fray.cluster.api import Cluster
from fray.cluster.backends import is_private_root
from fray.cluster.current import storage_cluster
from fray.cluster.current_job import current_job
from fray.pool.worker_pool import WorkerPool
from fray.types import ResourceConfig
from fray.zephyr.plan import Dataset, ListShard, ShardTask, TaskResult, compute_plan, run_plan
from fray.zephyr.stages import StageRunner, run_task
from fray_coordinator.clock import system_random
from fray_runtime.current_task import task_environ
from fray_runtime.variables import read_variable

DEFAULT_NAMESPACE = "default"
"""Namespace of executions outside of jobs. It does not change from run to run, so that a name is found again."""

MAX_THREADS = 32
"""Threads that read results or run shards. Most of them wait for files, so there may be more than cores."""

_executions: defaultdict[tuple[str, int], Iterator[int]] = defaultdict(lambda: itertools.count(1))
"""Numbers the executions of each attempt of a job, for their names."""


class FrayBackend:
    """A backend that runs a pipeline's shards on worker jobs, which take them from a queue in the cluster's storage.

    Args:
        cluster: by default the current one.
        max_parallelism: number of workers at most; fewer if there are fewer shards or less room.
        memory_per_worker: a size; a worker that uses more is ended. Each worker has one core.
    """

    def __init__(
        self, cluster: Cluster | None = None, max_parallelism: int = 100, memory_per_worker: int | str = "2GB"
    ) -> None:
        self._cluster = storage_cluster(cluster)
        self._max_parallelism = max_parallelism
        self._resources = ResourceConfig(cpu=1, memory=memory_per_worker)

    def execute(self, dataset: Dataset[Any], name: str | None = None) -> list[Any]:
        """Run a pipeline to its end, and return its results in order.

        A shard runs once unless its worker dies. If its code raises, it is tried three times, and then its exception is
        raised here.

        Args:
            name: the name of this execution: letters, digits, '-' and '_'. If an execution of that name has not ended,
                because its driver died or a shard failed, it is continued, and finished shards are not run again. All
                programs of the namespace share the names. By default it is made from the job's id and the number of the
                execution, so that the job's next attempt continues it; outside of jobs it is a new name.

        Raises:
            Exception: what a shard's own code raised.
            ShardGivenUp: a shard killed every worker that ran it.
            JobFailed: no worker comes up; the message says why.
            InvalidInput: the earlier execution of that name had other shards.
        """
        pool = WorkerPool.attach(
            name or _own_name(),
            self._cluster,
            (0, self._max_parallelism),
            self._resources,
            namespace=read_variable("FRAY_NAMESPACE", task_environ()) or DEFAULT_NAMESPACE,
            create=True,
        )
        try:
            results = _gathered(run_plan(compute_plan(dataset), StageRunner(pool).run))
        except BaseException:
            pool.detach()
            raise
        pool.shutdown(wait=False)  # all results were read, so unfinished tasks are not needed
        return results


class Backend:
    """Executes pipelines on the current cluster if there is one, else on threads."""

    @staticmethod
    def execute(
        dataset: Dataset[Any], max_parallelism: int = 100, memory: int | str = "2GB", name: str | None = None
    ) -> list[Any]:
        """Run a pipeline on the cluster that FRAY_CLUSTER_SPEC names, or without one on threads of this process.

        In a job FRAY_CLUSTER_SPEC always names the job's cluster.

        Args:
            max_parallelism: number of shards that run at once.
            memory: memory of each worker, on a cluster.
            name: see `FrayBackend.execute`. On threads it has no effect, and nothing is continued.
        """
        if not is_private_root(read_variable("FRAY_CLUSTER_SPEC", task_environ()) or "local"):
            return FrayBackend(None, max_parallelism, memory).execute(dataset, name)
        count = min(max_parallelism, MAX_THREADS)
        with tempfile.TemporaryDirectory(prefix="fray-zephyr-") as chunks, ThreadPoolExecutor(count) as threads:

            def run_stage(name: str, title: str, tasks: list[ShardTask]) -> list[TaskResult]:
                return list(threads.map(lambda task: run_task(task, chunks, "run"), tasks))

            return _gathered(run_plan(compute_plan(dataset), run_stage))


def _own_name() -> str:
    mine = current_job()
    if mine is None:
        return f"zephyr-{system_random().token()}"
    number = next(_executions[mine.job_id, mine.attempt])
    return f"zephyr-{sha256(mine.job_id.encode()).hexdigest()[:20]}-{number}"


def _gathered(shards: list[ListShard]) -> list[Any]:
    with ThreadPoolExecutor(MAX_THREADS) as threads:
        parts: list[list[Any]] = list(threads.map(list, shards))
    return [item for part in parts for item in part]
