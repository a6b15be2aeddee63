"""The transport that calls workers directly. It is quick, but its tasks are lost with the driver's process."""

import threading
from collections.abc import Sequence
from typing import Any

from fray.cluster.storage import StorageCluster
from fray.futures import TaskFuture
from fray.pool.dispatcher import Dispatcher, PoolClosed, give_up
from fray.pool.pool_task import PoolTask, packed_task
from fray.pool.transport import TaskCall, pool_progress
from fray.pool.worker_supervisor import WorkerSupervisor
from fray.types import EnvironmentConfig, ResourceConfig
from fray.wait_line import wait_with_progress
from fray_runtime.threads import start_thread

MAX_DEATHS = 3
"""Workers that may die during one task before the task is given up. One may die of another cause, but hardly three."""


class DirectTransport:
    """A `Transport` that calls workers directly. name: the workers' name, which nothing else has."""

    def __init__(
        self, cluster: StorageCluster, name: str, resources: ResourceConfig, environment: EnvironmentConfig | None
    ) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._dispatcher = Dispatcher(MAX_DEATHS, self._lost, self._joined, self._give_up)
        self._supervisor = WorkerSupervisor(cluster, name, resources, environment, self._dispatcher, self.close)

    @property
    def workers(self) -> int:
        return self._dispatcher.workers

    @property
    def wanted(self) -> int:
        return self._supervisor.wanted

    @property
    def unfinished(self) -> int:
        return self._dispatcher.unfinished

    def submit(self, calls: Sequence[TaskCall], workers: int) -> list[TaskFuture[Any]]:
        tasks = [packed_task(self._name, call.function, call.args, call.kwargs) for call in calls]
        for task in tasks:
            task.future.progress = self.progress
        self._dispatcher.submit(tasks)
        return [each.future for each in tasks]

    def grow(self, count: int) -> None:
        self._supervisor.grow(count)

    def shrink(self, count: int) -> None:
        self._supervisor.shrink(count)

    def await_workers(self, count: int, timeout: float) -> None:
        are_up = wait_with_progress(lambda within: self._are_up(count, within), timeout, self.progress)
        if self._dispatcher.closed:
            raise PoolClosed(self._dispatcher.closed)
        if not are_up:
            why = self._supervisor.explain_absence() or f"the pool is to have only {self.wanted}: resize it"
            raise TimeoutError(f"{self.workers} of {count} workers of {self._name} are up after {timeout:g} s; {why}")

    def drain(self, within: float) -> bool:
        return self._dispatcher.drain(within)

    def progress(self) -> str:
        tasks, why = self._dispatcher, self._supervisor.absence.why
        return pool_progress(tasks.submitted, tasks.unfinished, tasks.workers, self.wanted, why)

    def end(self) -> None:
        self._supervisor.end()
        self.close("the pool was shut down before the task was done")

    def _give_up(self, task: PoolTask, worker: str, why: str) -> None:
        """Give up the task once it is known how its last worker ended; the loss of a connection explains too little."""
        read_exit = self._supervisor.exit_reader(worker)
        start_thread(lambda: give_up(task, read_exit() or why), "fray-pool-exit", lambda error: give_up(task, why))

    def _lost(self, name: str) -> None:
        self._supervisor.lost(name)

    def close(self, why: str) -> None:
        self._dispatcher.close(why)
        self._joined()

    def _are_up(self, count: int, within: float) -> bool:
        """Wait until `count` workers are up or the pool is closed. Returns whether that came within so many seconds."""
        with self._changed:
            return bool(self._changed.wait_for(lambda: self.workers >= count or self._dispatcher.closed, within))

    def _joined(self) -> None:
        with self._changed:
            self._changed.notify_all()
