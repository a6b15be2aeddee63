"""Actors on a cluster in storage, each with a job of its own: handles and groups."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fray.actor.caller import ActorAddress, HandleCaller, caller_of
from fray.actor.group import ActorGroup
from fray.actor.handle import ActorHandle
from fray.cluster.current import environment_cluster, open_cluster, storage_cluster
from fray.cluster.current_job import current_job
from fray.cluster.job_info import info_of, original_exception
from fray.cluster.log_printer import post
from fray.cluster.storage import StorageCluster
from fray.display import MAX_ROWS, ShownTable
from fray.errors import ActorUnavailableError, InvalidInput, JobFailed
from fray.types import JobId, JobStatus
from fray.wait_line import WaitLine
from fray_coordinator.actors.naming import EndpointLookup
from fray_coordinator.core import Core
from fray_coordinator.jobs.waiting import PollBackoff, WaitProgress, wait_for

if TYPE_CHECKING:
    from fray.cluster.job_handle import JobHandle


T = TypeVar("T")


class StorageActorHandle(ActorHandle[T]):
    """A handle of an actor that is served by a job of a cluster in storage, or by a program outside of jobs."""

    def __init__(self, cluster: StorageCluster, address: ActorAddress) -> None:
        self._cluster = cluster
        self._address = address
        self._own_caller: HandleCaller | None = None

    def _caller(self) -> HandleCaller:
        if self._own_caller is None or self._own_caller.pid != os.getpid():
            self._own_caller = caller_of(self._cluster, self._address)
        return self._own_caller

    def __enter__(self) -> Self:
        """Return the handle. At the end of the block the actor is asked to end."""
        self._check_own_job()
        return self

    def _shut_down(self, why: str) -> None:
        self._check_own_job()
        self._cluster.terminate(JobId(self._address.job))
        self._end(why)

    def _check_own_job(self) -> None:
        if self._address.attempt:
            raise InvalidInput("actor", self, "the program that hosts it ends it, by HostedActor.shutdown()")

    def _end(self, why: str) -> None:
        """Make later calls from this process fail."""
        self._caller().end(why)

    def _status(self) -> JobStatus:
        return self._cluster.poll(JobId(self._address.job)).status

    def _identity(self) -> ActorAddress:
        return self._address

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (self._cluster.root, self._address)

    def __repr__(self) -> str:
        return f"ActorHandle({self._address.name!r}, {self._address.actor_id!r})"

    def _shown(self) -> ShownTable:
        job = self._cluster.poll(JobId(self._address.job))._shown()
        return replace(job, title=f"actor {self._address.name} ({self._address.job})")


def _loaded(root: str, address: ActorAddress) -> StorageActorHandle[Any]:
    return StorageActorHandle(cluster_at(root), address)


def cluster_at(root: str) -> StorageCluster:
    """The cluster of a pickled handle. In a job it is the cluster that runs the job, since its root may be written in
    another way where the handle was pickled."""
    return storage_cluster(environment_cluster() if current_job() is not None else open_cluster(root))


class StorageActorGroup(ActorGroup[T]):
    """A group whose actors are the jobs "<name>-0", "<name>-1" ... `statuses` reads the record of each job."""

    def __init__(self, cluster: StorageCluster, namespace: str, name: str, job_ids: Sequence[JobId]) -> None:
        super().__init__(
            name, [StorageActorHandle(cluster, ActorAddress(namespace, name, job, job)) for job in job_ids]
        )
        self._cluster = cluster
        self._namespace = namespace
        self._job_ids = job_ids
        self._serving = 0

    @property
    def jobs(self) -> list[JobHandle]:
        from fray.cluster.job_handle import JobHandle

        return [JobHandle(self._cluster, job) for job in self._job_ids]

    def statuses(self) -> list[JobStatus]:
        return [job.status() for job in self.jobs]

    def _ready(self) -> list[int]:
        return self._cluster.run(self._poll)

    def _wait_ready(self, wanted: int, timeout: float | None) -> list[int]:
        with WaitLine() as line:
            return self._cluster.run(lambda core: self._wait(core, wanted, timeout, line))

    async def _wait_ready_async(self, wanted: int, timeout: float | None) -> list[int]:
        with WaitLine() as line:
            return await self._cluster.run_async(lambda core: self._wait(core, wanted, timeout, line))

    async def _poll(self, core: Core, lookup: EndpointLookup | None = None) -> list[int]:
        lookup = lookup or EndpointLookup(core, self._namespace, self._name)
        serving = {found.actor_id for found in await lookup.poll()}
        ready = [index for index, job in enumerate(self._job_ids) if job in serving]
        self._serving = len(ready)
        return ready

    async def _wait(self, core: Core, wanted: int, timeout: float | None, line: WaitLine) -> list[int]:
        last = WaitProgress("", "", "")

        def show(jobs: WaitProgress) -> None:
            nonlocal last
            last = jobs
            post(line, self._progress(wanted, jobs), jobs.why)

        enough = asyncio.ensure_future(self._enough(core, wanted))
        too_few = asyncio.ensure_future(self._too_few(core, wanted, show))
        try:
            async with asyncio.timeout(timeout):
                done, _ = await asyncio.wait({enough, too_few}, return_when=asyncio.FIRST_COMPLETED)
            return await (enough if enough in done else too_few)
        except TimeoutError:
            await self._poll(core)
            late = f"{self._progress(wanted, last)} after {timeout:g} s"
            raise TimeoutError(f"{late}: {last.why}" if last.why else late) from None
        finally:
            enough.cancel()
            too_few.cancel()

    def _progress(self, wanted: int, jobs: WaitProgress) -> str:
        text = f"{self._serving} of {wanted} actors of {self._name!r} serve calls"
        return f"{text} (jobs: {jobs.others})" if jobs.others else text

    async def _enough(self, core: Core, wanted: int) -> list[int]:
        pace, lookup = PollBackoff(core), EndpointLookup(core, self._namespace, self._name)
        while len(ready := await self._poll(core, lookup)) < wanted:
            await pace.sleep()
        return ready[:wanted]

    async def _too_few(self, core: Core, wanted: int, on_progress: Callable[[WaitProgress], None]) -> list[int]:
        """Raise ActorUnavailableError once too many actors have ended for good; otherwise wait for ever."""
        living = list(self._job_ids)
        while len(living) >= wanted:
            if not living:
                await asyncio.sleep(math.inf)
            async with (await self._cluster.scaler()).during_wait() as on_machines:
                records = await wait_for(
                    core, living, any_failure=True, on_progress=on_progress, on_machines=on_machines
                )
            ended = [info for info in (info_of(core.root, job) for job in records.values()) if info.status.finished()]
            living = [job for job in living if job not in {info.job_id for info in ended}]
        why = self._shortage(len(living), wanted, JobFailed.of(ended[0]))
        raise ActorUnavailableError(why) from original_exception(ended[0].exit)

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded_group, (self._cluster.root, self._namespace, self._name, self._job_ids)

    def _shown(self) -> ShownTable:
        infos = [self._cluster.poll(job) for job in self._job_ids[:MAX_ROWS]]
        rows = [(info.name, info.status.value, info.host or "", info.error_message or "") for info in infos]
        title = f"{len(self._job_ids)} actors of {self._name}"
        return ShownTable(title, rows, ("actor", "status", "host", "reason"), len(self._job_ids) - len(rows))


def _loaded_group(root: str, namespace: str, name: str, job_ids: list[JobId]) -> StorageActorGroup[Any]:
    return StorageActorGroup(cluster_at(root), namespace, name, job_ids)
