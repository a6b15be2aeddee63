"""A group of actors that were created together."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from fray.actor.address import ActorAddress
from fray.actor.handle import ActorHandle, cluster_at
from fray.cluster.job_info import info_of, original_exception
from fray.cluster.log_printer import post
from fray.cluster.storage import StorageCluster
from fray.display import MAX_ROWS, Shown, ShownTable
from fray.errors import ActorUnavailableError, InvalidInput, JobFailed
from fray.types import JobId, JobStatus
from fray.wait_line import WaitLine
from fray_coordinator.actors.discovery import EndpointLookup
from fray_coordinator.core import Core
from fray_coordinator.jobs.waiting import PollBackoff, WaitProgress, wait_for

if TYPE_CHECKING:
    from fray.cluster.job_handle import JobHandle

T = TypeVar("T")


class ActorGroup(Shown, Generic[T]):
    """The actors "<name>-0", "<name>-1" ..., each a job of its own. Pickles as names.

    Which of them gets which work is the caller's business; `fray.rpc` has pools that share calls out.
    """

    def __init__(self, cluster: StorageCluster, namespace: str, name: str, job_ids: list[JobId]) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._job_ids = job_ids
        self._handles: dict[JobId, ActorHandle[T]] = {
            job: ActorHandle(cluster, ActorAddress(namespace, name, job, job)) for job in job_ids
        }
        self._found: set[str] = set()
        self._serving = 0

    @property
    def handles(self) -> list[ActorHandle[T]]:
        """A handle of each actor, in the order of their numbers, whether it serves calls yet or not."""
        return list(self._handles.values())

    @property
    def ready_count(self) -> int:
        """How many of the actors serve calls now; each use reads the storage.

        One that is restarted does not count until it is announced again.
        """
        return len(self._cluster.run(self._ready))

    @property
    def jobs(self) -> list[JobHandle]:
        """The handles of the actors' jobs, in the order of their numbers: to read logs, or to see how one ended."""
        from fray.cluster.job_handle import JobHandle

        return [JobHandle(self._cluster, job) for job in self._job_ids]

    def statuses(self) -> list[JobStatus]:
        """The status of each actor's job, in the order of their numbers; reads a record for each.

        RUNNING says that the process was started; `ready_count` counts those that serve calls.
        """
        return [job.status() for job in self.jobs]

    def is_done(self) -> bool:
        """Whether all of the actors have ended for good; reads a record for each.

        An actor that waits for its next restart has not ended.
        """
        return all(status.finished() for status in self.statuses())

    def wait_ready(self, count: int | None = None, timeout: float = 300.0) -> list[ActorHandle[T]]:
        """Wait until `count` actors, by default all, serve calls.

        Args:
            timeout: seconds.

        Returns:
            The handles of `count` that do, in their order; the list does not change afterwards.

        Raises:
            TimeoutError: too few serve calls in time. They go on starting.
            ActorUnavailableError: so many have ended that there never will be enough.
            InvalidInput: the group is smaller, or `count` is below 0.
        """
        wanted = self._checked_count(count)
        with WaitLine() as line:
            return self._tell(self._cluster.run(lambda core: self._wait(core, wanted, timeout, line)))

    async def wait_ready_async(self, count: int | None = None, timeout: float = 300.0) -> list[ActorHandle[T]]:
        """`wait_ready`, for coroutines."""
        wanted = self._checked_count(count)
        with WaitLine() as line:
            return self._tell(await self._cluster.run_async(lambda core: self._wait(core, wanted, timeout, line)))

    def _checked_count(self, count: int | None) -> int:
        wanted = len(self._job_ids) if count is None else count
        if not 0 <= wanted <= len(self._job_ids):
            raise InvalidInput("count", count, f"the group has {len(self._job_ids)} actors")
        return wanted

    def _await_all(self) -> None:
        """Wait until all serve calls, however long that takes. Raises ActorUnavailableError: one has ended."""
        with WaitLine() as line:
            self._cluster.run(lambda core: self._wait(core, len(self._job_ids), None, line))

    def discover_new(self) -> list[ActorHandle[T]]:
        """The handles of actors that serve calls now and that neither this nor `wait_ready` has returned before.

        workers = group.wait_ready(1)
        while work := more():
            workers += group.discover_new()
        """
        ready = self._cluster.run(self._ready)
        return self._tell([job for job in ready if job not in self._found])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Ask that all of the actors end, and return at once. Later calls of this process raise ActorUnavailableError.

        Each lets the calls that run end within its grace of ten seconds. `is_done` tells when all are gone.
        """
        for job, handle in self._handles.items():
            self._cluster.terminate(job)
            handle._end("was shut down with its group")

    @property
    def _job_id(self) -> JobId:
        return self._job_ids[0]

    def _tell(self, ready: list[JobId]) -> list[ActorHandle[T]]:
        self._found.update(ready)
        return [self._handles[job] for job in ready]

    async def _ready(self, core: Core, lookup: EndpointLookup | None = None) -> list[JobId]:
        lookup = lookup or EndpointLookup(core, self._namespace, self._name)
        serving = {found.actor_id for found in await lookup.look()}
        ready = [job for job in self._job_ids if job in serving]
        self._serving = len(ready)
        return ready

    async def _wait(self, core: Core, wanted: int, timeout: float | None, line: WaitLine) -> list[JobId]:
        last = WaitProgress("", "", "")

        def tell(jobs: WaitProgress) -> None:
            nonlocal last
            last = jobs
            post(line, self._progress(wanted, jobs), jobs.why)

        enough = asyncio.ensure_future(self._enough(core, wanted))
        too_few = asyncio.ensure_future(self._too_few(core, wanted, tell))
        try:
            async with asyncio.timeout(timeout):
                done, _ = await asyncio.wait({enough, too_few}, return_when=asyncio.FIRST_COMPLETED)
            return await (enough if enough in done else too_few)
        except TimeoutError:
            await self._ready(core)
            late = f"{self._progress(wanted, last)} after {timeout:g} s"
            raise TimeoutError(f"{late}: {last.why}" if last.why else late) from None
        finally:
            enough.cancel()
            too_few.cancel()

    def _progress(self, wanted: int, jobs: WaitProgress) -> str:
        text = f"{self._serving} of {wanted} actors of {self._name!r} serve calls"
        return f"{text} (jobs: {jobs.others})" if jobs.others else text

    async def _enough(self, core: Core, wanted: int) -> list[JobId]:
        pace, lookup = PollBackoff(core), EndpointLookup(core, self._namespace, self._name)
        while len(ready := await self._ready(core, lookup)) < wanted:
            await pace.sleep()
        return ready[:wanted]

    async def _too_few(self, core: Core, wanted: int, tell: Callable[[WaitProgress], None]) -> list[JobId]:
        """Wait for ever, or raise ActorUnavailableError once too many have ended."""
        living = list(self._job_ids)
        while len(living) >= wanted:
            if not living:
                await asyncio.sleep(math.inf)
            records = await wait_for(core, living, any_failure=True, on_progress=tell)
            ended = [info for info in (info_of(core.root, job) for job in records.values()) if info.status.finished()]
            living = [job for job in living if job not in {info.job_id for info in ended}]
        raise ActorUnavailableError(
            f"only {len(living)} of the {wanted} actors of {self._name!r} that are wanted can still come: "
            f"{JobFailed.of(ended[0])}"
        ) from original_exception(ended[0].exit)

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (self._cluster.root, self._namespace, self._name, self._job_ids)

    def __repr__(self) -> str:
        return f"ActorGroup({self._name!r}, {len(self._job_ids)} actors)"

    def _shown(self) -> ShownTable:
        infos = [self._cluster.poll(job) for job in self._job_ids[:MAX_ROWS]]
        rows = [(info.name, info.status.value, info.host or "", info.error_message or "") for info in infos]
        title = f"{len(self._job_ids)} actors of {self._name}"
        return ShownTable(title, rows, ("actor", "status", "host", "reason"), len(self._job_ids) - len(rows))


def _loaded(root: str, namespace: str, name: str, job_ids: list[JobId]) -> ActorGroup[Any]:
    return ActorGroup(cluster_at(root), namespace, name, job_ids)
