"""`StorageCluster`: the cluster under a root URL, with its records in storage and its agents anywhere."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from fray import sync
from fray.cluster import log_printer
from fray.cluster.arguments import checked_id
from fray.cluster.job_info import decode_result, fetch_result, fetch_results, info_of, waited_infos
from fray.cluster.launching import LaunchingCluster
from fray.items import Items, LoopItems
from fray.types import JobInfo
from fray.wait_line import WaitLine
from fray_coordinator.core import Core
from fray_coordinator.jobs import stopping
from fray_coordinator.jobs.logs import LogLine, follow_chunks, read_logs
from fray_coordinator.jobs.lookup import all_jobs, job_usage, read_job
from fray_coordinator.jobs.waiting import WaitProgress, wait_for
from fray_coordinator.protocol.transitions import is_terminal
from fray_layouts.records import JobRecord, JobResult, ResourceUsage
from fray_layouts.spec import is_gang

log = logging.getLogger("fray")


class StorageCluster(LaunchingCluster):
    """A cluster in storage. The constructor reads and writes nothing; the first call opens or creates the cluster.

    It pickles as its root and namespace. A forked child opens its own connections.

    Args:
        root: `gs://bucket/prefix`, `s3://bucket/prefix`, `file:///path`, a path, or `memory://name`, which exists in
            this process only.
        namespace: the scope of names of what is launched here; for the default see `Cluster.namespace`.

    Raises:
        InvalidInput: `namespace` is not a valid namespace.
    """

    @property
    def threads(self) -> StorageCluster:
        """A private cluster's view that launches callables as threads of this process; any other cluster itself."""
        return self

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
        from fray.cluster.pulling import pull_outputs  # imported late: few programs need it

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

    def __reduce__(self) -> tuple[type[StorageCluster], tuple[str, str | None], dict[str, str]]:
        return StorageCluster, (self.root, self._namespace), {"_driver_namespace": self._driver_namespace}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r})"

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
        return self._waited(ids, records, raise_on_failure)

    async def _wait_async(self, ids: list[str], raise_on_failure: bool, timeout: float | None) -> list[JobInfo]:
        self._output.belong_here()
        with WaitLine() as line:
            try:
                waiting = self.run_async(lambda core: self._wait_in_loop(core, ids, raise_on_failure, timeout, line))
                records = await waiting
            finally:
                await sync.in_thread(self._output.flush)
        return self._waited(ids, records, raise_on_failure)

    def _waited(self, ids: list[str], records: dict[str, JobRecord], raise_on_failure: bool) -> list[JobInfo]:
        self._launched_jobs.note_ends(records.values())
        return waited_infos(self.root, ids, records, raise_on_failure, self._launched_jobs.how_to_stop)

    async def _wait_in_loop(
        self, core: Core, ids: list[str], raise_on_failure: bool, timeout: float | None, line: WaitLine
    ) -> dict[str, JobRecord]:
        def show(now: WaitProgress) -> None:
            log_printer.post(line, now.text, now.why)

        async with self._output.waiting(ids) as note, (await self.scaler()).during_wait() as on_machines:
            return await wait_for(core, ids, timeout, raise_on_failure, note, show, on_machines)

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
            self._hints.gathered(core)  # the reconciler then tells the gang's members
        elif job.lease is not None and not is_terminal(job):
            self._hints.stopped(core, job.lease.agent)


async def _read_result(core: Core, job_id: str) -> tuple[JobResult, bytes]:
    return await fetch_result(core, (await read_job(core, job_id)).record)


async def _read_results(core: Core, job_id: str) -> list[tuple[JobResult, bytes]]:
    return await fetch_results(core, (await read_job(core, job_id)).record)


async def _read_last(core: Core, job_id: str, count: int) -> list[LogLine]:
    return await read_logs(core, (await read_job(core, job_id)).record, count or None)


def _warn(job: JobRecord, why: str) -> None:
    log.warning("job %s waits: %s", job.id, why)


local_clusters: WeakValueDictionary[str, StorageCluster] = WeakValueDictionary()
"""The open `LocalCluster`s by root. Empty in a forked child, because their agents run in the parent."""

os.register_at_fork(after_in_child=local_clusters.clear)
