"""The interface of a cluster: launch jobs, wait for them, read what they print and return."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, overload

from fray.cluster.arguments import checked_ids
from fray.cluster.current_job import current_job_on
from fray.cluster.placing import PlacingCluster
from fray.cluster.replica_lines import ReplicaLines
from fray.items import Items
from fray.types import JobId, JobInfo, JobRequest, Namespace
from fray_coordinator.jobs.logs import LogLine
from fray_layouts.object_keys import JobIds
from fray_layouts.records import ResourceUsage

if TYPE_CHECKING:
    from fray.cluster.actors import Metadata


class Cluster(PlacingCluster, Protocol):
    """Launches jobs and reports on them. Usable from any thread, and inside a running event loop.

    Every method that talks to the storage may raise `StoreUnavailable` (an outage: try again) or `StoreRefused`
    (missing permissions: grant them); both are `FrayError`.

        cluster = current_cluster()
        job = cluster.launch(JobRequest("train", Entrypoint.from_callable(train, args=(config,))))
        cluster.wait(job, raise_on_failure=True)

    Attributes:
        root: which cluster it is, as `open_cluster` takes it and FRAY_CLUSTER_SPEC names it.
    """

    root: str

    @property
    def namespace(self) -> Namespace:
        """The scope of the names of what is launched here, and of the actors that are found here.

        The namespace that the cluster was opened with; else, inside one of its jobs, that job's; else FRAY_NAMESPACE;
        else one made up for this object. So a driver, its jobs and its actors find one another, and two drivers do not
        collide.
        """

    @property
    def lasting_namespace(self) -> Namespace:
        """The scope of the names of what outlives programs, so that the next one finds it: detached actors.

        It is `namespace` if somebody chose that, and "default" if it was made up for this program or job.
        """
        mine, namespace = current_job_on(self.root), self.namespace
        is_made_up = JobIds.is_fresh(namespace) or (mine is not None and namespace == mine.job_id)
        return Namespace("default") if is_made_up else namespace

    @property
    def metadata(self) -> Metadata:
        """The actors that are announced in `namespace`, and their addresses. To call one, use a resolver.

        Each lookup reads the storage; nothing is cached.
        """

    def launch(self, request: JobRequest) -> JobId:
        """Submit a job and return its id at once; the job starts when an agent has room for it.

        Inside a job of this cluster the new job becomes that job's child and ends with it, unless the request says
        `detached`.

            job = cluster.launch(JobRequest("train", Entrypoint.from_callable(train), ResourceConfig.with_cpu(2)))
            cluster.result(job)

        Args:
            request: what to run, what it needs, and how often it is tried again; see `JobRequest`.

        Raises:
            InvalidInput: a value of the request is wrong, its callable cannot be pickled, or this release cannot do
                what it asks for. Nothing was submitted.
            ParentNotRunning: the job named as `parent` does not run.
        """

    def launch_many(self, requests: Sequence[JobRequest]) -> list[JobId]:
        """Submit many jobs in one call, and return their ids in the same order.

        Faster than as many `launch` calls: the requests to the storage are made side by side. A wrong request raises
        before anything is submitted; if the storage fails halfway, some jobs may have been submitted.

        Args:
            requests: as for `launch`, one for each job.

        Raises:
            InvalidInput, ParentNotRunning: as `launch`.
        """

    def poll(self, job_id: str) -> JobInfo:
        """Read a job's state now: one request to the storage.

            info = cluster.poll(job)
            info.status, info.host, info.error_message

        Args:
            job_id: as `launch` returned it, or `fray ps` shows it.

        Raises:
            JobNotFound: there is no such job under the root, or retention has removed it.
        """

    @overload
    def wait(  # type: ignore[overload-overlap]  # text is a sequence of texts too; one id is meant
        self,
        job_id: str,
        raise_on_failure: bool = False,
        timeout: float | None = None,
        *,
        fail_on_error: bool = False,
    ) -> JobInfo: ...
    @overload
    def wait(
        self,
        job_id: Sequence[str],
        raise_on_failure: bool = False,
        timeout: float | None = None,
        *,
        fail_on_error: bool = False,
    ) -> list[JobInfo]: ...
    @overload
    def wait(  # type: ignore[overload-overlap]
        self,
        *,
        job_ids: str,
        raise_on_failure: bool = False,
        timeout: float | None = None,
        fail_on_error: bool = False,
    ) -> JobInfo: ...
    @overload
    def wait(
        self,
        *,
        job_ids: Sequence[str],
        raise_on_failure: bool = False,
        timeout: float | None = None,
        fail_on_error: bool = False,
    ) -> list[JobInfo]: ...
    def wait(
        self,
        job_id: str | Sequence[str] | None = None,
        raise_on_failure: bool = False,
        timeout: float | None = None,
        *,
        fail_on_error: bool = False,
        job_ids: str | Sequence[str] | None = None,
    ) -> JobInfo | list[JobInfo]:
        """Block until a job, or all of several, have ended.

        Logs a warning when no live agent could ever start a job, or when none has had room for it for half a minute.

        Args:
            job_id: one id, or a sequence of ids: then a list comes back, in the same order.
            raise_on_failure: raise as soon as one job has failed or was stopped; the others go on.
            timeout: seconds to wait; None waits for ever.
            fail_on_error: the same as `raise_on_failure`.
            job_ids: the same as `job_id`.

        Raises:
            JobFailed: see `raise_on_failure`. The message has the job's traceback, the cause is its exception.
            TimeoutError: not all jobs have ended in time. They go on.
            JobNotFound: there is no such job.
            JobGone: retention removed the job while it was waited for.
            InvalidInput: no id is given, or something else.
        """
        wanted = job_ids if job_id is None else job_id
        infos = self._wait(checked_ids(wanted), raise_on_failure or fail_on_error, timeout)
        return infos[0] if isinstance(wanted, str) else infos

    def _wait(self, ids: list[str], raise_on_failure: bool, timeout: float | None) -> list[JobInfo]: ...

    @overload
    async def wait_async(  # type: ignore[overload-overlap]
        self, job_id: str, raise_on_failure: bool = False, timeout: float | None = None
    ) -> JobInfo: ...
    @overload
    async def wait_async(
        self, job_id: Sequence[str], raise_on_failure: bool = False, timeout: float | None = None
    ) -> list[JobInfo]: ...
    async def wait_async(
        self, job_id: str | Sequence[str], raise_on_failure: bool = False, timeout: float | None = None
    ) -> JobInfo | list[JobInfo]:
        """`wait`, for coroutines: who is cancelled only stops waiting, and the jobs go on.

        Args:
            job_id, raise_on_failure, timeout: as for `wait`.

        Raises:
            JobFailed, TimeoutError, JobNotFound, JobGone: as `wait`.
        """
        infos = await self._wait_async(checked_ids(job_id), raise_on_failure, timeout)
        return infos[0] if isinstance(job_id, str) else infos

    async def _wait_async(self, ids: list[str], raise_on_failure: bool, timeout: float | None) -> list[JobInfo]: ...

    def monitor(self, job_id: str) -> JobInfo:
        """Print everything the job prints to this program's stdout, until the job has ended; its final state.

        Output of earlier attempts is printed too; of a gang, each line behind the number of its replica. Use
        `logs(job_id, follow=True)` to get the lines instead.

        Args:
            job_id: of the job; whether it runs, waits or has ended.

        Raises:
            JobNotFound: there is no such job.
        """
        lines: Iterable[LogLine] = self.logs(job_id, follow=True)
        if self.poll(job_id).replicas > 1:
            merged = ReplicaLines()
            lines = chain(merged.whole(lines), merged.rest())
        for line in lines:
            print(line, end="\n" if line.complete else "", file=sys.stdout)
        return self.poll(job_id)

    def logs(self, job_id: str, follow: bool = False, replica: int | None = None) -> Items[LogLine]:
        """Iterate over the lines that the job has written to stdout and stderr; those of a gang's replicas by time.

            async for line in cluster.logs(job, follow=True):  # in coroutines; elsewhere without async
                print(line)

        Args:
            job_id: of the job; whether it runs, waits or has ended.
            follow: False gives the lines of the current or last attempt that are stored so far; until the next one
                begins, those of the last that printed anything. True gives those of all attempts from the first one on,
                and goes on until the job has ended.
            replica: of a gang, the only one whose lines are wanted; a line says by `replica` whose it is.

        Raises:
            JobNotFound: there is no such job.
            InvalidInput: there is no such replica.
        """

    def _last_lines(self, job_id: str, count: int) -> Sequence[LogLine]:
        """The last lines of `logs` without `follow`; 0: all."""

    def result(self, job_id: str, timeout: float | None = None) -> Any:
        """Wait for the job to end, and return what its callable returned.

        The result of a command is what it wrote to the file that FRAY_RESULT names. Results are unpickled in the
        calling thread, which runs code of whoever launched the job.

        Args:
            job_id: of the job.
            timeout: seconds to wait; None waits for ever.

        Raises:
            JobFailed: the job failed or was stopped.
            NoResult: it succeeded without a result, or with one that cannot be read here.
            TimeoutError: it has not ended in time. It goes on.
        """

    def results(self, job_id: str, timeout: float | None = None) -> list[Any]:
        """Wait for a gang to end, and return what each replica returned, in order; `result` is that of replica 0.

        Args:
            job_id, timeout: as for `result`.

        Raises:
            JobFailed, NoResult, TimeoutError: as `result`; NoResult also if one replica has none.
        """

    async def result_async(self, job_id: str, timeout: float | None = None) -> Any:
        """`result`, for coroutines: who is cancelled only stops waiting.

        Args:
            job_id, timeout: as for `result`.

        Raises:
            JobFailed, NoResult, TimeoutError: as `result`.
        """

    def pull(self, job_id: str, target: str | os.PathLike[str], path: str = "") -> list[Path]:
        """Fetch the files that a job which succeeded has left, those that its `outputs` name; where they are now.

        Args:
            job_id: of the job, which has ended.
            target: the folder for them; it is made if it is absent, and files of the same paths in it are replaced.
            path: of one file or folder of them, or a pattern as in `outputs`; "" fetches all.

        Raises:
            NoOutputs: the job has none, or none of that path; or they cannot be read, or written here.
            JobNotFound: there is no such job.
        """

    def usage(self, job_id: str) -> ResourceUsage | None:
        """What the current attempt uses of the host; once the job has ended, the totals of its last attempt.

        As the agent's last heartbeat says, so a few seconds old at most. None before the first measurement, and for
        jobs that are threads of a local cluster, which nobody measures.

            used = cluster.usage(job)
            used.cpu_seconds, used.memory_peak  # seconds of CPU; bytes

        Args:
            job_id: of the job.

        Raises:
            JobNotFound: there is no such job.
        """

    def terminate(self, job_id: str) -> None:
        """Ask that a job and its children end, and return at once.

        A running job gets SIGTERM, its `grace` seconds, then SIGKILL. A job that has ended is left as it is.

        Args:
            job_id: of the job; `wait` for its end.

        Raises:
            JobNotFound: there is no such job.
        """

    def list_jobs(self) -> list[JobInfo]:
        """Read every job under the root, in order of submission; finished jobs until retention removes them.

        Costs one request to the storage for each job. A record that cannot be read is left out, with a warning in the
        log.
        """

    def close(self) -> None:
        """Close the connections to the storage. Jobs go on; actors that this program owns end.

        A call after it opens connections again.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
