"""`JobHandle`, the handle of a submitted job, and the functions that wait for several."""

from collections.abc import Sequence

from fray.cluster.api import Cluster
from fray.display import Shown, ShownTable
from fray.types import Duration, JobId, JobStatus
from fray_layouts.errors import InvalidInput, Permanent
from fray_layouts.records import ResourceUsage


class JobHandle(Shown):
    """The handle of a submitted job.

    It pickles as its cluster and id, and works in every process that can open that cluster. Two handles of one job are
    equal.
    """

    def __init__(self, cluster: Cluster, job_id: str) -> None:
        self._cluster = cluster
        self._job_id = JobId(job_id, cluster.poll)

    @property
    def job_id(self) -> JobId:
        """The job's id: its name and a unique suffix. `client.cluster` and `fray status` take it."""
        return self._job_id

    @property
    def cluster(self) -> Cluster:
        """The cluster that the job runs on; `job.cluster.result(job.job_id)` is what its callable returned."""
        return self._cluster

    def wait(self, timeout: Duration | None = None, *, raise_on_failure: bool = True) -> JobStatus:
        """Block until the job has ended, and return its final status.

        Args:
            timeout: seconds to wait, or text such as "10m"; None waits for ever.
            raise_on_failure: False returns FAILED and STOPPED like other statuses, instead of raising.

        Raises:
            JobFailed: the job failed or was stopped. The message has the job's exception and traceback; `__cause__` is
                the exception itself.
            TimeoutError: the job has not ended in time. It goes on.
            JobNotFound, JobGone: retention has removed the job.
        """
        return self._cluster.wait(self._job_id, raise_on_failure, timeout).status

    async def wait_async(self, timeout: Duration | None = None, *, raise_on_failure: bool = True) -> JobStatus:
        """`wait`, for coroutines. Cancelling it only stops the wait; the job goes on.

        Args:
            timeout, raise_on_failure: as for `wait`.

        Raises:
            JobFailed, TimeoutError, JobNotFound, JobGone: as `wait`.
        """
        return (await self._cluster.wait_async(self._job_id, raise_on_failure, timeout)).status

    def status(self) -> JobStatus:
        """Read the job's current status, with one request to the storage.

        Raises:
            JobNotFound: retention has removed the job.
        """
        return self._cluster.poll(self._job_id).status

    def usage(self) -> ResourceUsage | None:
        """The resources that the current attempt uses, or the last one used: seconds of CPU, bytes of memory and disk.

        The figures come from the agent's last heartbeat, so they are at most a few seconds old. None before the first
        measurement, and for jobs that are threads of a local cluster.

        Raises:
            JobNotFound: retention has removed the job.
        """
        return self._cluster.usage(self._job_id)

    def logs(self, max_lines: int = 0) -> tuple[str, ...]:
        """The last lines that the current or last attempt has printed.

        While the job waits for its next attempt, they are those of the last attempt that printed anything.

        Args:
            max_lines: the number of lines at most; 0 returns all.

        Raises:
            InvalidInput: `max_lines` is negative.
            JobNotFound: retention has removed the job.
        """
        if max_lines < 0:
            raise InvalidInput("max_lines", max_lines, "give the number of lines, or 0 for all")
        return tuple(str(line) for line in self._cluster._last_lines(self._job_id, max_lines))

    def terminate(self) -> None:
        """Ask the job and its children to end, and return at once; use `wait` to wait for the end.

        A running job gets SIGTERM, and SIGKILL after its `grace` seconds. Nothing happens to a job that has ended.
        """
        self._cluster.terminate(self._job_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and (self._cluster.root, self._job_id) == (
            other._cluster.root,
            other._job_id,
        )

    def __hash__(self) -> int:
        return hash((self._cluster.root, self._job_id))

    def __repr__(self) -> str:
        return f"JobHandle({self._job_id!r})"

    def _shown(self) -> ShownTable:
        return self._cluster.poll(self._job_id)._shown()


class JobAlreadyExists(Permanent, RuntimeError):
    """An unfinished job of this namespace has the name: adopt it, wait for its end, or choose another name.

    Attributes:
        job_name: the name that is in use.
        handle: the handle of the job that has the name; None if a program made the error itself.
    """

    def __init__(self, job_name: str, handle: JobHandle | None = None) -> None:
        self.job_name = job_name
        self.handle = handle
        which = f": {handle.job_id}" if handle is not None else ""
        super().__init__(
            f"a job named {job_name} runs already{which}; submit with adopt_existing=True to go on with it, "
            "or choose another name"
        )

    def __reduce__(self) -> tuple[type, tuple[str, JobHandle | None]]:
        return type(self), (self.job_name, self.handle)


def wait_all(
    jobs: Sequence[JobHandle], *, timeout: Duration | None = None, raise_on_failure: bool = True
) -> list[JobStatus]:
    """Block until all jobs have ended, and return their final statuses in the given order.

    The jobs are watched together: each poll of many jobs costs one listing, not one read per job.

    Args:
        jobs: handles of jobs on one cluster.
        timeout: seconds for all of them together; None waits for ever.
        raise_on_failure: raise as soon as any job has failed or was stopped; the other jobs go on.

    Raises:
        JobFailed: a job failed or was stopped, and `raise_on_failure` is True; as `JobHandle.wait`.
        TimeoutError: not all jobs have ended in time. They go on.
        InvalidInput: the jobs are not all on one cluster.
    """
    cluster = _their_cluster(jobs)
    infos = cluster.wait([job.job_id for job in jobs], raise_on_failure, timeout) if cluster is not None else []
    return [info.status for info in infos]


async def wait_all_async(
    jobs: Sequence[JobHandle], *, timeout: Duration | None = None, raise_on_failure: bool = True
) -> list[JobStatus]:
    """`wait_all`, for coroutines. Cancelling it only stops the wait; the jobs go on."""
    cluster, ids = _their_cluster(jobs), [job.job_id for job in jobs]
    infos = await cluster.wait_async(ids, raise_on_failure, timeout) if cluster is not None else []
    return [info.status for info in infos]


def _their_cluster(jobs: Sequence[JobHandle]) -> Cluster | None:
    """The cluster of all the jobs, or None for no jobs. Raises InvalidInput if they are not on one cluster."""
    clusters = {job.cluster.root: job.cluster for job in jobs}
    if len(clusters) > 1:
        raise InvalidInput("jobs", sorted(clusters), "wait for the jobs of each cluster in a call of its own")
    return next(iter(clusters.values()), None)
