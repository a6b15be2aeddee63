"""`StorageCluster`: the cluster under a root URL, with its records in storage and its agents anywhere."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fray import sync
from fray.cluster import log_printer
from fray.cluster.arguments import checked_id
from fray.cluster.current_job import current_job_on, current_user
from fray.cluster.driver_output import DriverOutput
from fray.cluster.hints import HintSender
from fray.cluster.job_info import decode_result, fetch_result, fetch_results, info_of, raise_first_failure
from fray.cluster.launching import LaunchingCluster
from fray.cluster.scaling import WaitingScaler
from fray.items import Items, LoopItems
from fray.types import (
    JobId,
    JobInfo,
    Namespace,
)
from fray.wait_line import WaitLine
from fray_agents.tasks.current_task import task_environ
from fray_agents.tasks.environment import PRIVATE_VAR
from fray_coordinator.clock import system_random
from fray_coordinator.core import Core, open_core
from fray_coordinator.jobs import stopping
from fray_coordinator.jobs.logs import LogLine, follow_chunks, read_logs
from fray_coordinator.jobs.lookup import all_jobs, job_usage, read_job
from fray_coordinator.jobs.waiting import WaitProgress, wait_for
from fray_coordinator.per_loop import PerLoop
from fray_coordinator.placements.routing import ReservationRouter
from fray_coordinator.protocol.transitions import is_terminal
from fray_coordinator.store.metering import RequestCounts as Requests
from fray_coordinator.store.opening import root_url
from fray_layouts.object_keys import JobIds
from fray_layouts.records import JobRecord, JobResult, ResourceUsage
from fray_layouts.spec import is_gang
from fray_layouts.spec_checks import check_namespace

if TYPE_CHECKING:
    from fray.cluster.actors import ClusterKeyring, Metadata
    from fray_agents.agent.driver import Driver, HostedService

log = logging.getLogger("fray")

T = TypeVar("T")


class StorageCluster(LaunchingCluster):
    """A cluster in storage. Making one reads and writes nothing; the first call opens it, or creates it.

    It pickles as its root and namespace. A forked child opens connections of its own.

    Args:
        root: `gs://bucket/prefix`, `s3://bucket/prefix`, `file:///path`, a path, or `memory://name`, which lives in
            this process alone.
        namespace: the scope of the names of what is launched here; by default see `Cluster.namespace`.

    Raises:
        InvalidInput: the namespace cannot be one.
    """

    def __init__(self, root: str, namespace: str | None = None) -> None:
        self.root = root_url(root)
        self._namespace = namespace
        self._driver_namespace = task_environ().get("FRAY_NAMESPACE") or _made_up_namespace()
        check_namespace(namespace or self._driver_namespace)
        self._core = PerLoop(self._open)
        self._driver = PerLoop(self._open_driver)
        self._output = DriverOutput(self._core.get, self._has_log_only)
        self._scaler = PerLoop(self._open_scaler)
        self._leaving_pid = 0
        self._hints = HintSender(lambda: self.keyring)
        self._router = ReservationRouter()

    @property
    def namespace(self) -> Namespace:
        mine = current_job_on(self.root)
        return Namespace(self._namespace or (mine.namespace if mine else self._driver_namespace))

    @property
    def in_threads(self) -> bool:
        """Whether the cluster's jobs are threads of this process: a `LocalCluster` without processes."""
        return False

    @property
    def threads(self) -> StorageCluster:
        """The cluster for who launches callables as threads of this process; this one, unless it is private."""
        return self

    @property
    def log_to_driver(self) -> bool:
        """Whether this program shows what the jobs print that it launches here, its actors and workers among them.

        By default as FRAY_LOG_TO_DRIVER says (1 or 0), else in terminals and notebooks. Each line goes to the stream
        that it was printed to, behind the job's id; of one job at most 100 a second for long. Assign to it before jobs
        are launched.
        """
        return self._output.is_on

    @log_to_driver.setter
    def log_to_driver(self, shown: bool) -> None:
        self._output.chosen = shown

    @property
    def metadata(self) -> Metadata:
        from fray.cluster.actors import Metadata  # who calls no actors need not import what that needs

        return Metadata(self.run, self.namespace)

    @cached_property
    def keyring(self) -> ClusterKeyring:
        """The keys that all callers and servers of this cluster object share."""
        from fray.cluster.actors import ClusterKeyring  # as above

        return ClusterKeyring(self.run)

    def owner(self) -> JobId | None:
        """The job that stands for this program while it lives: the parent of what is to end with the program.

        It is made by the first call. None inside a job, which is the parent of what it launches anyway.

        Raises:
            ParentNotRunning: the job that stands for this program was stopped.
        """
        if current_job_on(self.root) is not None:
            return None
        self._leave_at_exit()
        return JobId(sync.run(self._own_job()))

    def host(self, hosted: HostedService) -> None:
        """Announce a service of this program, which runs outside of jobs, for as long as it serves."""
        self._leave_at_exit()
        sync.run(self._host(hosted))

    def poll(self, job_id: str) -> JobInfo:
        return info_of(self.root, self._read(job_id))

    def logs(self, job_id: str, follow: bool = False, replica: int | None = None) -> Items[LogLine]:
        job = checked_id(job_id)
        return LoopItems(self._follow(job, replica) if follow else self._lines_so_far(job, replica))

    def _last_lines(self, job_id: str, count: int) -> list[LogLine]:
        return self.run(lambda core: _read_last(core, job_id, count))

    def result(self, job_id: str, timeout: float | None = None) -> Any:
        self.wait(checked_id(job_id), raise_on_failure=True, timeout=timeout)
        return decode_result(*self.run(lambda core: _read_result(core, job_id)))

    def results(self, job_id: str, timeout: float | None = None) -> list[Any]:
        self.wait(checked_id(job_id), raise_on_failure=True, timeout=timeout)
        found = self.run(lambda core: _read_results(core, job_id))
        return [decode_result(result, data) for result, data in found]

    async def result_async(self, job_id: str, timeout: float | None = None) -> Any:
        await self.wait_async(checked_id(job_id), raise_on_failure=True, timeout=timeout)
        return decode_result(*await self.run_async(lambda core: _read_result(core, job_id)))

    def pull(self, job_id: str, target: str | os.PathLike[str], path: str = "") -> list[Path]:
        from fray.cluster.pulling import pull_outputs  # few programs fetch any

        job = self._read(job_id)
        return self.run(lambda core: pull_outputs(core, job, Path(target), path)).files

    def usage(self, job_id: str) -> ResourceUsage | None:
        job = checked_id(job_id)
        return self.run(lambda core: job_usage(core, job))

    def terminate(self, job_id: str) -> None:
        job = checked_id(job_id)
        self.run(lambda core: self._stop(core, job))

    def list_jobs(self) -> list[JobInfo]:
        problems: dict[str, str] = {}
        jobs = self.run(lambda core: all_jobs(core, problems))
        for problem in problems.values():
            log.warning("left out: %s", problem)
        return [info_of(self.root, job) for job in jobs]

    def show_output(self, jobs: Sequence[str]) -> None:
        """Show what these jobs print as if they were launched here, from their last chunk on; see `log_to_driver`."""
        sync.run(self._output.follow_known(jobs))

    def requests(self) -> Requests:
        """Count the requests that this process has sent to the storage through this cluster since it was opened."""
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
        """`run` for coroutines in any event loop; who is cancelled cancels the service."""
        return await sync.awaited(self.run_in_loop(work))

    def start(self, work: Callable[[Core], Awaitable[T]]) -> Future[T]:
        """Begin a service as `run` does, and return a future of its result at once."""
        return sync.start(self.run_in_loop(work))

    async def run_in_loop(self, work: Callable[[Core], Awaitable[T]]) -> T:
        """`run` for code that is in the background loop already."""
        return await work(await self._core.get())

    async def scaler(self) -> WaitingScaler:
        """What makes machines for this program's waits, if nobody else does; for code in the background loop."""
        return await self._scaler.get()

    def close(self) -> None:
        sync.run(self._close())
        self._output.flush()

    def __reduce__(self) -> tuple[type[StorageCluster], tuple[str, str | None], dict[str, str]]:
        return StorageCluster, (self.root, self._namespace), {"_driver_namespace": self._driver_namespace}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r})"

    @property
    def _is_private(self) -> bool:
        """Whether jobs run on this machine, whatever they ask for."""
        return current_job_on(self.root) is not None and PRIVATE_VAR in task_environ()

    def _leave_at_exit(self) -> None:
        if self._leaving_pid != os.getpid():
            self._leaving_pid = os.getpid()
            sync.at_exit(partial(self._leave_in, self._leaving_pid))

    def _leave_in(self, process: int) -> None:
        if os.getpid() == process:  # a fork has this hook too
            sync.run(self._leave())
            self._output.flush()

    def _read(self, job_id: str) -> JobRecord:
        job = checked_id(job_id)
        return self.run(lambda core: read_job(core, job)).record

    def _wait(self, ids: list[str], raise_on_failure: bool, timeout: float | None) -> list[JobInfo]:
        self._output.belong_here()
        with WaitLine() as line:
            try:
                records = self.run(lambda core: self._wait_in_loop(core, ids, raise_on_failure, timeout, line))
            finally:
                self._output.flush()
        return self._infos(ids, records, raise_on_failure)

    async def _wait_async(self, ids: list[str], raise_on_failure: bool, timeout: float | None) -> list[JobInfo]:
        self._output.belong_here()
        with WaitLine() as line:
            try:
                waiting = self.run_async(lambda core: self._wait_in_loop(core, ids, raise_on_failure, timeout, line))
                records = await waiting
            finally:
                await sync.in_thread(self._output.flush)
        return self._infos(ids, records, raise_on_failure)

    def _infos(self, ids: list[str], records: dict[str, JobRecord], raise_on_failure: bool) -> list[JobInfo]:
        infos = [info_of(self.root, records[job]) for job in ids]
        if raise_on_failure:
            raise_first_failure(infos)
        return infos

    # --- in the background loop

    async def _open_driver(self) -> Driver:
        from fray_agents.agent.driver import Driver  # an agent's code, which few programs need

        program = Path(sys.argv[0]).name if sys.argv else ""
        program = program.encode(errors="replace").decode() or "python"
        return Driver(await self._core.get(), self._namespace or self._driver_namespace, current_user(), program)

    async def _own_job(self) -> str:
        return await (await self._driver.get()).job()

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
        return await open_core(self.root)

    def _has_log_only(self, job: JobRecord) -> bool:
        """Whether a job's output is nowhere but in its log."""
        return True

    async def _wait_in_loop(
        self, core: Core, ids: list[str], raise_on_failure: bool, timeout: float | None, line: WaitLine
    ) -> dict[str, JobRecord]:
        def tell(now: WaitProgress) -> None:
            log_printer.post(line, now.text, now.why)

        async with self._output.waiting(ids) as note, (await self.scaler()).during_wait() as on_machines:
            return await wait_for(core, ids, timeout, raise_on_failure, note, tell, on_machines)

    async def _follow(self, job_id: str, replica: int | None) -> AsyncGenerator[Sequence[LogLine], None]:
        await self._output.forget(job_id)
        core = await self._core.get()
        async with (await self.scaler()).during_wait() as on_machines:
            followed = follow_chunks(core, job_id, on_waiting=_warn, replica=replica, on_machines=on_machines)
            async with aclosing(followed) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def _lines_so_far(self, job_id: str, replica: int | None) -> AsyncGenerator[Sequence[LogLine], None]:
        core = await self._core.get()
        yield await read_logs(core, (await read_job(core, job_id)).record, replica=replica)

    async def _stop(self, core: Core, job_id: str) -> None:
        job = await stopping.stop(core, job_id, "terminated by a program")
        await self._output.note(job)
        if is_gang(job.spec):
            self._hints.gathered(core)  # whoever runs the pass tells its members
        elif job.lease is not None and not is_terminal(job):
            self._hints.stopped(core, job.lease.agent)

    async def _close(self) -> None:
        await self._leave()
        core = await self._core.take()
        if core is not None:
            await core.store.close()


def _made_up_namespace() -> str:
    return JobIds.fresh("driver", time.time(), system_random().token())


async def _read_result(core: Core, job_id: str) -> tuple[JobResult, bytes]:
    return await fetch_result(core, (await read_job(core, job_id)).record)


async def _read_results(core: Core, job_id: str) -> list[tuple[JobResult, bytes]]:
    return await fetch_results(core, (await read_job(core, job_id)).record)


async def _read_last(core: Core, job_id: str, count: int) -> list[LogLine]:
    return await read_logs(core, (await read_job(core, job_id)).record, count or None)


async def _request_counts(core: Core) -> Requests:
    return core.store.usage.snapshot()


def _warn(job: JobRecord, why: str) -> None:
    log.warning("job %s waits: %s", job.id, why)
