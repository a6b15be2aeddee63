"""The interface of a cluster: launch jobs, wait for them, and read their output and results."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, overload

from fray.cluster.arguments import checked_ids, checked_timeout
from fray.cluster.current_job import current_job_on
from fray.cluster.log_printer import ReplicaLines
from fray.cluster.placing import PlacingCluster
from fray.items import Items
from fray.types import Duration, JobId, JobInfo, JobRequest, Namespace
from fray_coordinator.jobs.logs import LogLine
from fray_layouts.object_keys import JobIds
from fray_layouts.records import ResourceUsage

if TYPE_CHECKING:
    from fray.cluster.actor_metadata import Metadata


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
        """The scope of names: of the jobs that are launched here, and of the actors that are found here.

        It is the namespace that the cluster was opened with. Without one it is, inside one of the cluster's jobs, that
        job's namespace; elsewhere FRAY_NAMESPACE; without that, a namespace made up for this object. So a driver, its
        jobs and its actors find one another, and two drivers do not collide.
        """

    @property
    def lasting_namespace(self) -> Namespace:
        """The scope of names of detached actors, which outlive programs and are found by later ones.

        It is `namespace` if somebody chose that, and "default" if it was made up for this program or job.
        """
        mine, namespace = current_job_on(self.root), self.namespace
        is_made_up = JobIds.is_fresh(namespace) or (mine is not None and namespace == mine.job_id)
        return Namespace("default") if is_made_up else namespace

    @property
    def metadata(self) -> Metadata:
        """Finds the actors that are announced in `namespace`, with their addresses. To call one, use a resolver.

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
            ParentNotRunning: the job named as `parent` is not running.
        """

    def launch_many(self, requests: Sequence[JobRequest]) -> list[JobId]:
        """Submit many jobs in one call, and return their ids in the same order.

        It is faster than a `launch` call for each job, because the requests to the storage run concurrently. If a
        request is wrong, nothing is submitted; if the storage fails halfway, some jobs may have been submitted.

        Args:
            requests: one for each job, as for `launch`.

        Raises:
            InvalidInput, ParentNotRunning: as `launch`.
        """

    def poll(self, job_id: str) -> JobInfo:
        """Read a job's current state, with one request to the storage.

            info = cluster.poll(job)
            info.status, info.host, info.error_message

        Args:
            job_id: the id that `launch` returned or that `fray ps` shows.

        Raises:
            JobNotFound: there is no such job under the root, or retention has removed it.
        """

    @overload
    def wait(  # type: ignore[overload-overlap]  # text is a sequence of texts too; one id is meant
        self,
        job_id: str,
        raise_on_failure: bool = False,
        timeout: Duration | None = None,
        *,
        fail_on_error: bool = False,
    ) -> JobInfo: ...
    @overload
    def wait(
        self,
        job_id: Sequence[str],
        raise_on_failure: bool = False,
        timeout: Duration | None = None,
        *,
        fail_on_error: bool = False,
    ) -> list[JobInfo]: ...
    @overload
    def wait(  # type: ignore[overload-overlap]
        self,
        *,
        job_ids: str,
        raise_on_failure: bool = False,
        timeout: Duration | None = None,
        fail_on_error: bool = False,
    ) -> JobInfo: ...
    @overload
    def wait(
        self,
        *,
        job_ids: Sequence[str],
        raise_on_failure: bool = False,
        timeout: Duration | None = None,
        fail_on_error: bool = False,
    ) -> list[JobInfo]: ...
    def wait(
        self,
        job_id: str | Sequence[str] | None = None,
        raise_on_failure: bool = False,
        timeout: Duration | None = None,
        *,
        fail_on_error: bool = False,
        job_ids: str | Sequence[str] | None = None,
    ) -> JobInfo | list[JobInfo]:
        """Block until a job has ended, or all of several jobs.

        Logs a warning when no live agent could ever start a job, or when no agent has had room for half a minute.

        Args:
            job_id: one id, or a sequence of ids; for a sequence a list is returned, in the same order.
            raise_on_failure: raise as soon as one job has failed or was stopped; the other jobs go on.
            timeout: seconds to wait, or text such as "10m"; None waits for ever.
            fail_on_error: the same as `raise_on_failure`.
            job_ids: the same as `job_id`.

        Raises:
            JobFailed: a job failed or was stopped, and `raise_on_failure` is set. The message has the job's traceback;
                `__cause__` is its exception.
            TimeoutError: not all jobs have ended in time. They go on.
            JobNotFound: there is no such job.
            JobGone: retention removed the job during the wait.
            InvalidInput: no id was given, or a value that is not an id, or not a duration.
        """
        wanted = job_ids if job_id is None else job_id
        infos = self._wait(checked_ids(wanted), raise_on_failure or fail_on_error, checked_timeout(timeout))
        return infos[0] if isinstance(wanted, str) else infos

    def _wait(self, ids: list[str], raise_on_failure: bool, timeout: float | None) -> list[JobInfo]: ...

    @overload
    async def wait_async(  # type: ignore[overload-overlap]
        self, job_id: str, raise_on_failure: bool = False, timeout: Duration | None = None
    ) -> JobInfo: ...
    @overload
    async def wait_async(
        self, job_id: Sequence[str], raise_on_failure: bool = False, timeout: Duration | None = None
    ) -> list[JobInfo]: ...
    async def wait_async(
        self, job_id: str | Sequence[str], raise_on_failure: bool = False, timeout: Duration | None = None
    ) -> JobInfo | list[JobInfo]:
        """`wait`, for coroutines. Cancelling it only stops the wait; the jobs go on.

        Args:
            job_id, raise_on_failure, timeout: as for `wait`.

        Raises:
            JobFailed, TimeoutError, JobNotFound, JobGone: as `wait`.
        """
        infos = await self._wait_async(checked_ids(job_id), raise_on_failure, checked_timeout(timeout))
        return infos[0] if isinstance(job_id, str) else infos

    async def _wait_async(self, ids: list[str], raise_on_failure: bool, timeout: float | None) -> list[JobInfo]: ...

    def monitor(self, job_id: str) -> JobInfo:
        """Print the job's output to this program's stdout until the job has ended, and return its final state.

        The output of earlier attempts is printed too. For a gang each line begins with the number of its replica. To
        get the lines instead, use `logs(job_id, follow=True)`.

        Args:
            job_id: id of a job that waits, runs or has ended.

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
        """Iterate over the lines that the job has written to stdout and stderr. A gang's lines are ordered by time.

            async for line in cluster.logs(job, follow=True):  # in coroutines; elsewhere without async
                print(line)

        Args:
            job_id: id of a job that waits, runs or has ended.
            follow: False gives the lines of the current or last attempt that are stored so far; while a job waits for
                its next attempt, those of the last attempt that printed anything. True gives the lines of all attempts
                from the first one on, and goes on until the job has ended.
            replica: number of the only replica of a gang whose lines are wanted; None gives the lines of all. Each
                line has its replica's number in `replica`.

        Raises:
            JobNotFound: there is no such job.
            InvalidInput: there is no such replica.
        """

    def _last_lines(self, job_id: str, count: int) -> Sequence[LogLine]:
        """The last `count` lines of `logs` without `follow`; all lines if `count` is 0."""

    def result(self, job_id: str, timeout: float | None = None) -> Any:
        """Wait for the job to end, and return what its callable returned.

        The result of a command is the content of the file that FRAY_RESULT names. Results are unpickled in the calling
        thread, which can run code of the job's submitter.

        Args:
            job_id: id of the job.
            timeout: seconds to wait; None waits for ever.

        Raises:
            JobFailed: the job failed or was stopped.
            NoResult: it succeeded without a result, or with one that cannot be read here.
            TimeoutError: it has not ended in time. It goes on.
        """

    def results(self, job_id: str, timeout: float | None = None) -> list[Any]:
        """Wait for a gang to end, and return each replica's result in the order of their numbers.

        `result` returns that of replica 0 alone.

        Args:
            job_id, timeout: as for `result`.

        Raises:
            JobFailed, NoResult, TimeoutError: as `result`; NoResult also if one replica has no result.
        """

    async def result_async(self, job_id: str, timeout: float | None = None) -> Any:
        """`result`, for coroutines. Cancelling it only stops the wait.

        Args:
            job_id, timeout: as for `result`.

        Raises:
            JobFailed, NoResult, TimeoutError: as `result`.
        """

    def pull(self, job_id: str, target: str | os.PathLike[str], path: str = "") -> list[Path]:
        """Download the output files of a job that has succeeded, and return their local paths.

        Args:
            job_id: id of a job that has ended.
            target: the folder for the files. It is created if it is absent, and existing files in it are replaced.
            path: one file or folder among the outputs, or a pattern as in the request's `outputs`; "" fetches all.

        Raises:
            NoOutputs: the job has no outputs, or none at that path; or they cannot be read, or not be written here.
            JobNotFound: there is no such job.
        """

    def usage(self, job_id: str) -> ResourceUsage | None:
        """The resources that the current attempt uses; once the job has ended, the totals of its last attempt.

        The figures come from the agent's last heartbeat, so they are at most a few seconds old. None before the first
        measurement, and for jobs that are threads of a local cluster, which are not measured.

            used = cluster.usage(job)
            used.cpu_seconds, used.memory_peak  # seconds of CPU; bytes

        Args:
            job_id: id of the job.

        Raises:
            JobNotFound: there is no such job.
        """

    def terminate(self, job_id: str) -> None:
        """Ask a job and its children to end, and return at once.

        A running job gets SIGTERM, and SIGKILL after its `grace` seconds. Nothing happens to a job that has ended.

        Args:
            job_id: id of the job. Use `wait` to wait for its end.

        Raises:
            JobNotFound: there is no such job.
        """

    def list_jobs(self) -> list[JobInfo]:
        """Read every job under the root, in order of submission, and finished jobs until retention removes them.

        It costs one request to the storage per job. A record that cannot be read is left out, with a logged warning.
        """

    def close(self) -> None:
        """Close the connections to the storage. Jobs go on; actors that this program owns end.

        The next call on this object opens connections again.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
