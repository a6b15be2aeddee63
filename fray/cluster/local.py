"""A private cluster: the same protocol on a temporary directory, with an agent inside this process."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from fray.actor.preload import MODULES
from fray.cluster.current import private
from fray.cluster.storage import StorageCluster
from fray.types import JobId, JobRequest
from fray_agents.agent import Agent, AgentOptions, Departure
from fray_agents.spares import Spares
from fray_agents.taskhandle import TaskHandle
from fray_agents.tasks import TaskSpec
from fray_agents.threads import ThreadTask
from fray_coordinator import sync
from fray_coordinator.core import LOCAL_SETTINGS, Core, open_core
from fray_coordinator.store.files import forgo_syncs
from fray_layouts.records import Resources

log = logging.getLogger("fray")

_NEVER = 365 * 86400.0
_SETTINGS = msgspec.structs.replace(LOCAL_SETTINGS, beat_interval=_NEVER, idle_beat_interval=_NEVER)
"""Nobody else can declare this agent dead, so it need not prove that it lives."""

_PLENTY = 2**60
_PATIENCE = 10.0
"""Seconds for killed tasks to be gone and their ends to be written."""


class LocalCluster(StorageCluster):
    """A cluster that lives and dies with this process; see `Cluster` for the methods.

    Jobs start in the current directory and import what this process can import. Memory and disk are not counted; a job
    that asks for more cores than `max_workers`, or for an accelerator, stays pending, and `wait` says so. Pickled, it
    becomes a `StorageCluster` on the same directory. `close`, or the end of the main thread, ends its jobs.

    Args:
        max_workers: cores that jobs may use together; a job asks for one unless it says otherwise.
        use_processes: False runs callables in threads of this process. Then they share `os.environ`, and what they
            print is not kept as their log. Commands are processes all the same.
    """

    def __init__(self, max_workers: int = 4, use_processes: bool = True) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="fray-"))
        forgo_syncs(self._directory / "root")
        super().__init__(str(self._directory / "root"))
        self._owner = os.getpid()
        self.use_processes = use_processes
        self._spares = Spares(MODULES)
        self._options = AgentOptions(
            capacity=Resources(cpu=max_workers * 1000, memory=_PLENTY, disk=_PLENTY),
            work_dir=self._directory / "work",
            start_task=self._start_process if use_processes else ThreadTask.start,
            cwd=os.getcwd(),
        )
        self._agent: Agent | None = None
        self._running: asyncio.Task[Departure] | None = None
        sync.at_exit(self.close)
        sync.run(self._core.get())

    @property
    def here(self) -> bool:
        """Whether this process made it, rather than one that was forked."""
        return os.getpid() == self._owner

    def launch_many(self, requests: Sequence[JobRequest]) -> list[JobId]:
        ids = super().launch_many(requests)
        sync.run(self._poke())
        return ids

    async def _open(self) -> Core:
        core = await open_core(self.root, _SETTINGS)
        if self.here:
            private[self.root] = self
            self._agent = Agent(core, self._options)
            self._running = asyncio.create_task(self._agent.run())
            self._running.add_done_callback(_report)
        return core

    async def _start_process(self, spec: TaskSpec, deadline: float, lock_fd: int | None) -> TaskHandle:
        """A task that imports what this process can import."""
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        return await self._spares.start(replace(spec, env={**spec.env, "PYTHONPATH": paths}), deadline, lock_fd)

    async def _poke(self) -> None:
        if self._agent is not None:
            self._agent.poke()

    async def _close(self) -> None:
        if not self.here:
            return
        private.pop(self.root, None)
        agent, running = self._agent, self._running
        self._agent = self._running = None
        if agent is not None and running is not None:
            agent.terminate()
            agent.terminate()
            await asyncio.wait([running], timeout=_PATIENCE)
            running.cancel()
            await asyncio.wait([running])
        await self._spares.close()
        await super()._close()
        shutil.rmtree(self._directory, ignore_errors=True)


def _report(running: asyncio.Task[Departure]) -> None:
    if not running.cancelled() and (error := running.exception()) is not None:
        log.error("the local cluster's agent ended with an error; its jobs stay as they are", exc_info=error)
