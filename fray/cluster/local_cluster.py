"""`LocalCluster`: a private cluster on a temporary directory, with an agent inside this process."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from fray import sync
from fray.cluster.arguments import checked_requests
from fray.cluster.callable_references import CallableReferences, is_reference
from fray.cluster.log_printer import LineEcho
from fray.cluster.prestart import PRESTART_MODULES
from fray.cluster.storage import StorageCluster, local_clusters
from fray.types import JobId, JobRequest, ResourceConfig
from fray_agents.agent.agent import Agent, AgentOptions, ExitReason
from fray_agents.host.agent_lock import lock_folder
from fray_agents.tasks.prestart import Prestarter
from fray_agents.tasks.task_handle import TaskHandle, TaskSpec
from fray_agents.tasks.thread_task import ThreadTask
from fray_coordinator.concurrency import keep_running, start_task
from fray_coordinator.core import LOCAL_SETTINGS, Core, open_core
from fray_coordinator.jobs.lookup import jobs_by_id
from fray_coordinator.protocol.transitions import is_terminal
from fray_coordinator.store.file_objects import forgo_syncs
from fray_layouts.errors import InvalidInput
from fray_layouts.records import JobRecord, Resources
from fray_runtime.current_task import PRIVATE_VAR, PrivateMode

log = logging.getLogger("fray")

_YEAR = 365 * 86400.0
_SETTINGS = msgspec.structs.replace(LOCAL_SETTINGS, beat_interval=_YEAR, idle_beat_interval=_YEAR)
"""Settings with a heartbeat a year, so none in practice: this agent is alone, and nobody else could declare it dead."""

_DEFAULT_PROCESSES = 4
"""Jobs that compute at once by default. A laptop stays usable with as many, and a few jobs do run in parallel."""

_UNLIMITED_THREADS = 10**6
"""No limit in practice. Most threads may only wait for others, which costs next to nothing."""

_UNLIMITED_BYTES = 2**50
"""Memory and disk that the agent offers, so that no job lacks any: a private cluster does not count them."""

_SHUTDOWN_TIMEOUT = 10.0
"""Seconds until killed tasks must have ended and their ends be written; a kill takes far less on a busy machine."""


@dataclass(frozen=True)
class LocalClusterConfig:
    """The arguments of a `LocalCluster` in the form that older programs use.

    Attributes:
        use_isolated_env: True runs each job as a process, False as a thread of this process.
    """

    use_isolated_env: bool = False


class LocalCluster(StorageCluster):
    """A private cluster on this machine, to try out programs before they run on a shared one.

        with LocalCluster() as cluster:
            job = cluster.launch(JobRequest("hello", lambda: print("hello")))
            cluster.monitor(job)

    Jobs start in the current directory, and callables import what this process can import, so workspaces and packages
    are not sent. A job that asks for more cores or memory than this machine has, or for devices, an image, a pool or a
    place that it lacks, is refused, unless the cluster simulates. Memory and disk are not limited. A gang runs all of
    its replicas, and takes no core.
    The cluster ends with this process: `close`, or the end of the main thread, ends the jobs. Unpickled in this process
    it is the same object; in another process it becomes a `StorageCluster` on the same directory.

    Args:
        max_workers: number of jobs that compute at once, while others wait; by default 4 processes, or any number of
            threads. A job that asks for part of a core counts as that part. A job that serves calls does not count. Of
            the children of each job one runs in its parent's place. A `LocalClusterConfig` chooses between processes
            and threads.
        use_processes: False runs callables in threads of this process; `LocalClient` lists what threads share.
            Commands always run as processes.
        simulate: True runs jobs without what they ask for and this machine lacks, and logs it.

    Raises:
        InvalidInput: `max_workers` is below 1.
    """

    def __init__(
        self, max_workers: int | LocalClusterConfig | None = None, use_processes: bool = True, simulate: bool = False
    ) -> None:
        if isinstance(max_workers, LocalClusterConfig):
            use_processes = max_workers.use_isolated_env
            max_workers = None
        if max_workers is None:
            max_workers = _DEFAULT_PROCESSES if use_processes else _UNLIMITED_THREADS
        if not max_workers > 0:
            raise InvalidInput("max_workers", max_workers, "give at least 1, or no job would ever run")
        self._directory = Path(tempfile.mkdtemp(prefix="fray-"))
        forgo_syncs(self._directory / "root")
        super().__init__(str(self._directory / "root"))
        self._owner = os.getpid()
        self._use_processes = use_processes
        self._mode: PrivateMode = "simulated" if simulate else "real"
        self._spares = Prestarter(PRESTART_MODULES)
        self._references = CallableReferences(self._ended)
        self._options = AgentOptions(
            capacity=Resources(cpu=max_workers * 1000, memory=_UNLIMITED_BYTES, disk=_UNLIMITED_BYTES),
            work_dir=self._directory / "work",
            start_task=self._start_task,
            cwd=os.getcwd(),
            overcommits=True,
        )
        self._agent: Agent | None = None
        self._running: asyncio.Task[None] | None = None
        sync.at_exit(self.close)
        sync.run(self._core.get())

    @property
    def here(self) -> bool:
        """Whether this process created the cluster; False in a forked child, which cannot close it."""
        return os.getpid() == self._owner

    @property
    def use_processes(self) -> bool:
        """Whether callables that are launched here run as processes; if not, they run in threads of this process."""
        return self._use_processes

    @property
    def ends_with_program(self) -> bool:
        return self.here

    @property
    def in_threads(self) -> bool:
        return self.here and not self.use_processes

    @cached_property
    def threads(self) -> LocalCluster:
        """The same cluster with the same jobs and names, except that callables launched through it run in threads."""
        return LocalThreads(self) if self.use_processes else self

    def __reduce__(self) -> tuple[Any, ...]:
        plain = StorageCluster(self.root, self._namespace)
        plain._driver_namespace = self._driver_namespace
        return _unpickled, (plain, not self.use_processes)

    def launch_many(self, requests: Sequence[JobRequest]) -> list[JobId]:
        if self.in_threads:
            ids = self._references.launch(checked_requests(requests), super().launch_many)
        else:
            ids = super().launch_many(requests)
        sync.run(self._wake_agent())
        return ids

    @property
    def _private(self) -> PrivateMode:
        return self._mode

    async def _open(self) -> Core:
        core = await open_core(self.root, _SETTINGS)
        if self.here:
            local_clusters[self.root] = self
            self._agent = Agent(core, self._options)
            self._running = start_task(self._serve(core, self._agent))
        return core

    async def _serve(self, core: Core, agent: Agent) -> None:
        """Run the agent until the cluster is closed. One that fails, or was declared dead, is followed by another."""

        async def another() -> Agent:
            return Agent(core, replace(self._options, rejoins=True))

        while True:
            try:
                if await agent.run() is ExitReason.LEFT:
                    return
            except Exception:
                log.exception("the agent of the local cluster has failed; another one follows, and its jobs go on")
            agent = self._agent = await keep_running(another)

    def _has_log_only(self, job: JobRecord) -> bool:
        """Whether a job's output goes only to its log. A thread's output is already on this process's streams."""
        call = job.spec.entrypoint.callable
        if call is None:
            return True
        return self.use_processes and not is_reference(base64.b64decode(call.pickle))

    async def _start_task(self, spec: TaskSpec, deadline: float, lock_fd: int | None) -> TaskHandle:
        """Start a task, with a variable that says that its cluster is private.

        The process of a callable gets this process's import path.
        """
        env = {**spec.env, PRIVATE_VAR: self._mode}
        if not self.use_processes or is_reference(spec.callable_pickle):
            replica = int(env["FRAY_REPLICA"]) if env.get("FRAY_REPLICAS", "1") != "1" else None
            echo = LineEcho(env["FRAY_JOB_ID"], int(env["FRAY_ATTEMPT"]), replica) if self.log_to_driver else None
            return await ThreadTask.start(replace(spec, env=env), deadline, lock_fd, echo)
        if spec.callable_pickle is not None:  # a command may be a Python of another version
            env["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        return await self._spares.start(replace(spec, env=env), deadline, lock_fd)

    def _ended(self, jobs: Sequence[JobId]) -> set[JobId]:
        found = self.run(lambda core: jobs_by_id(core, jobs, problems={}))
        ended = [job for job, record in found.items() if record is None or is_terminal(record)]
        return set(map(JobId, ended))

    async def _wake_agent(self) -> None:
        if self._agent is not None:
            self._agent.look_for_work()
            self._agent.check_placements()

    async def _leave(self) -> None:
        """Close the driver without ending its actors: they end with the cluster."""
        driver = await self._driver.take()
        if driver is not None:
            await driver.close()

    async def _close(self) -> None:
        if not self.here:
            return
        local_clusters.pop(self.root, None)
        agent, running = self._agent, self._running
        self._agent = self._running = None
        if agent is not None and running is not None:
            agent.terminate()
            agent.terminate()
            await asyncio.wait([running], timeout=_SHUTDOWN_TIMEOUT)
            running.cancel()
            await asyncio.wait([running])
        await self._output.leave()
        self._references.close()
        await self._spares.close()
        await super()._close()
        shutil.rmtree(self._directory, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            lock_folder(self.root).rmdir()


class LocalThreads(LocalCluster):
    """A view of a `LocalCluster` of processes that launches callables as threads: the `threads` of that cluster.

    Threads take none of the cluster's cores: they start as soon as they are launched, however many there are.
    """

    def __init__(self, cluster: LocalCluster) -> None:
        self.__dict__ = cluster.__dict__  # not a copy: both share one agent, one driver and one set of connections

    @property
    def use_processes(self) -> bool:
        return False

    def launch_many(self, requests: Sequence[JobRequest]) -> list[JobId]:
        return super().launch_many([_without_cores(request) for request in checked_requests(requests)])


def _without_cores(request: JobRequest) -> JobRequest:
    if not isinstance(request.resources, ResourceConfig):
        return request  # wrong; `to_spec` refuses it
    return replace(request, resources=replace(request.resources, cpu=0))


def _unpickled(plain: StorageCluster, in_threads: bool) -> StorageCluster:
    known = local_clusters.get(plain.root, plain)
    return known.threads if in_threads else known
