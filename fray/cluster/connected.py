"""The connections of a cluster in storage: opened on first use, once per process, and closed."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fray import sync
from fray.cluster.api import Cluster
from fray.cluster.current_job import current_job_on, current_user, made_up_namespace
from fray.cluster.driver_log import DriverOutput
from fray.cluster.launched import LaunchedJobs
from fray.cluster.waiting_scaler import WaitingScaler
from fray.types import JobId, Namespace
from fray_coordinator.core import Core, open_core, open_known_core
from fray_coordinator.per_process import PerLoop
from fray_coordinator.store.metering import RequestCounts
from fray_coordinator.store.opening import root_url
from fray_layouts.records import JobRecord
from fray_layouts.spec_parsing import check_namespace
from fray_runtime.current_task import PrivateMode, private_mode, task_environ
from fray_runtime.variables import read_variable

if TYPE_CHECKING:
    from fray.cluster.actor_metadata import ClusterKeyring, Metadata
    from fray_agents.agent.driver import Driver, HostedService

T = TypeVar("T")


class ConnectedCluster(Cluster):
    """A cluster in storage, with this program's open connections: its core, driver, scaler and its jobs' output.

    Args:
        root, namespace: as for `StorageCluster`.
    """

    def __init__(self, root: str, namespace: str | None = None) -> None:
        self.root = root_url(root)
        self._namespace = namespace
        self._driver_namespace = read_variable("FRAY_NAMESPACE", task_environ()) or made_up_namespace()
        check_namespace(namespace or self._driver_namespace)
        self._core = PerLoop(self._open)
        self._driver = PerLoop(self._open_driver)
        self._output = DriverOutput(self._core.get, self._has_log_only)
        self._scaler = PerLoop(self._open_scaler)
        self._launched_jobs = LaunchedJobs(self)
        self._leaving_pid = 0

    @property
    def namespace(self) -> Namespace:
        mine = current_job_on(self.root)
        return Namespace(self._namespace or (mine.namespace if mine else self._driver_namespace))

    @property
    def made_up_namespace(self) -> str:
        """The namespace that only this object's jobs have; "" if the program or its environment has chosen one."""
        is_chosen = self._namespace or read_variable("FRAY_NAMESPACE", task_environ()) or current_job_on(self.root)
        return "" if is_chosen else self._driver_namespace

    @property
    def ends_with_program(self) -> bool:
        """Whether the cluster ends with this program."""
        return False

    @property
    def in_threads(self) -> bool:
        """Whether the cluster's jobs are threads of this process: a `LocalCluster` without processes."""
        return False

    @property
    def log_to_driver(self) -> bool:
        """Whether this program shows the output of the jobs that it launches here, including its actors and workers.

        The default is FRAY_LOG_TO_DRIVER (1 or 0); without that, True in terminals and notebooks. Each line goes to
        stdout or stderr, as the job printed it, behind the job's id. Of one job at most 100 lines a second are shown,
        after a burst of 1,000. Assign to it before you launch jobs.
        """
        return self._output.is_on

    @log_to_driver.setter
    def log_to_driver(self, shown: bool) -> None:
        self._output.chosen = shown

    @property
    def metadata(self) -> Metadata:
        from fray.cluster.actor_metadata import Metadata  # imported late: programs without actors need none of it

        return Metadata(self.run, self.namespace)

    @cached_property
    def keyring(self) -> ClusterKeyring:
        """The keys of the cluster, shared by all callers and servers of this object."""
        from fray.cluster.actor_metadata import ClusterKeyring  # as above

        return ClusterKeyring(self.run)

    def owner(self) -> JobId | None:
        """The job that stands for this program while it lives. It is the parent of jobs that end with the program.

        The first call creates it. None inside a job, which is itself the parent of the jobs that it launches.

        Raises:
            ParentNotRunning: the job that stands for this program was stopped.
        """
        if current_job_on(self.root) is not None:
            return None
        self._leave_at_exit()
        return JobId(sync.run(self._own_job()))

    def host(self, hosted: HostedService) -> None:
        """Announce a service of this program, which runs outside of jobs, until it stops serving."""
        self._leave_at_exit()
        sync.run(self._host(hosted))

    def show_output(self, jobs: Sequence[str]) -> None:
        """Show these jobs' output from their last chunk on, as if they were launched here; see `log_to_driver`."""
        sync.run(self._output.follow_known(jobs))

    def requests(self) -> RequestCounts:
        """Counts of the requests that this process has sent to the storage through this object since it was opened."""
        return self.run(_request_counts)

    def run(self, work: Callable[[Core], Awaitable[T]]) -> T:
        """Run a service of `fray_coordinator` on this cluster, in the background loop, and return its result.

        Args:
            work: called with the open cluster, in that loop.

        Raises:
            WouldDeadlock: called from the background loop itself.
        """
        return sync.run(self.run_in_loop(work))

    async def run_async(self, work: Callable[[Core], Awaitable[T]]) -> T:
        """`run` for coroutines in any event loop. Cancelling it cancels the service."""
        return await sync.awaited(self.run_in_loop(work))

    def start(self, work: Callable[[Core], Awaitable[T]]) -> Future[T]:
        """Start a service as `run` does, and return a future of its result at once."""
        return sync.start(self.run_in_loop(work))

    async def run_in_loop(self, work: Callable[[Core], Awaitable[T]]) -> T:
        """`run` for code that already runs in the background loop."""
        return await work(await self._core.get())

    async def scaler(self) -> WaitingScaler:
        """The scaler that makes machines while this program waits, if no other one does. For the background loop."""
        return await self._scaler.get()

    def close(self) -> None:
        sync.run(self._close())
        self._output.flush()

    @property
    def _private(self) -> PrivateMode:
        """The mode of this cluster if it is the private one whose job runs this code; "" if not."""
        return private_mode() if current_job_on(self.root) is not None else ""

    def _leave_at_exit(self) -> None:
        if self._leaving_pid != os.getpid():
            self._leaving_pid = os.getpid()
            sync.at_exit(partial(self._leave_in, self._leaving_pid))

    def _leave_in(self, process: int) -> None:
        if os.getpid() == process:  # a forked child inherits this hook and must not run it
            sync.run(self._leave())
            self._output.flush()

    async def _open_driver(self) -> Driver:
        from fray_agents.agent.driver import Driver  # imported late: few programs need an agent's code

        program = Path(sys.argv[0]).name if sys.argv else ""
        program = program.encode(errors="replace").decode() or "python"
        return Driver(await self._core.get(), self._namespace or self._driver_namespace, current_user(), program)

    async def _own_job(self) -> str:
        return await (await self._driver.get()).job()

    async def _own_job_now(self) -> str:
        """The job that stands for this program; "" if it has none yet."""
        driver = self._driver.opened()
        return driver.present_job if driver is not None else ""

    async def _host(self, hosted: HostedService) -> None:
        await (await self._driver.get()).host(hosted)

    async def _leave(self) -> None:
        driver = await self._driver.take()
        if driver is not None:
            await driver.leave()
        await self._output.leave()
        scaler = await self._scaler.take()
        if scaler is not None:
            await scaler.close()

    async def _open_scaler(self) -> WaitingScaler:
        return WaitingScaler(await self._core.get())

    async def _open(self) -> Core:
        return await (open_core if current_job_on(self.root) is None else open_known_core)(self.root)

    def _has_log_only(self, job: JobRecord) -> bool:
        """Whether a job's output goes only to its log, and not also to this program's own streams."""
        return True

    async def _close(self) -> None:
        await self._leave()
        core = await self._core.take()
        if core is not None:
            await core.store.close()


async def _request_counts(core: Core) -> RequestCounts:
    return core.store.usage.snapshot()
