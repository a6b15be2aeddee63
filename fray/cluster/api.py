"""What every cluster offers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, overload

from fray.types import JobGroupConfig, JobId, JobInfo, JobRequest, Namespace, ReservationConfig
from fray_coordinator.jobs.waiting import LogLine
from fray_layouts.records import ResourceUsage

if TYPE_CHECKING:
    from fray.cluster.metadata import Metadata


class Cluster(Protocol):
    """Launches jobs and tells about them; usable from any thread and inside a running event loop.

    Every method that talks to the storage may raise `StoreUnavailable` (try again) and `StoreRefused` (mend the
    rights), both `FrayError`.
    """

    @property
    def namespace(self) -> Namespace:
        """Scope of names for what is launched here, and of the actors found here.

        What the cluster was opened with, else in one of its jobs that job's namespace, else FRAY_NAMESPACE, else one
        of this object's own: a driver, its jobs and its actors find one another, and two drivers do not collide.
        """
        ...

    @property
    def metadata(self) -> Metadata:
        """Which actors are announced in `namespace`, and where; resolvers call them."""
        ...

    def launch(self, request: JobRequest) -> JobId:
        """Submit a job; returns at once.

        Raises:
            InvalidInput: the request is wrong; nothing was submitted.
            ParentNotRunning: the parent it names does not run.
        """
        ...

    def launch_many(self, requests: Sequence[JobRequest]) -> list[JobId]:
        """Submit many jobs in one call, which shares what their submissions have in common. Raises as `launch`."""
        ...

    def launch_group(
        self, requests: Sequence[JobRequest], group: JobGroupConfig, reservation_id: str | None = None
    ) -> list[JobId]:
        """Submit jobs that belong together: all of them, or none if one request is wrong.

        They start as there is room, not together: starting all or none comes in a later release.

        Raises:
            InvalidInput: as `launch`; or a reservation is named, or a namespace other than the group's: nothing was
                submitted.
        """
        ...

    def create_reservation(self, config: ReservationConfig) -> str:
        """A later release: raises InvalidInput."""
        ...

    def poll(self, job_id: JobId) -> JobInfo:
        """The job as it is now. Raises JobNotFound."""
        ...

    @overload
    def wait(  # type: ignore[overload-overlap]  # a JobId is text, but no sequence of JobIds
        self,
        job_id: JobId,
        raise_on_failure: bool = False,
        timeout: float | None = None,
        *,
        fail_on_error: bool = False,
    ) -> JobInfo: ...
    @overload
    def wait(
        self,
        job_id: Sequence[JobId],
        raise_on_failure: bool = False,
        timeout: float | None = None,
        *,
        fail_on_error: bool = False,
    ) -> list[JobInfo]: ...
    @overload
    def wait(  # type: ignore[overload-overlap]
        self,
        *,
        job_ids: JobId,
        raise_on_failure: bool = False,
        timeout: float | None = None,
        fail_on_error: bool = False,
    ) -> JobInfo: ...
    @overload
    def wait(
        self,
        *,
        job_ids: Sequence[JobId],
        raise_on_failure: bool = False,
        timeout: float | None = None,
        fail_on_error: bool = False,
    ) -> list[JobInfo]: ...
    def wait(
        self,
        job_id: JobId | Sequence[JobId] | None = None,
        raise_on_failure: bool = False,
        timeout: float | None = None,
        *,
        fail_on_error: bool = False,
        job_ids: JobId | Sequence[JobId] | None = None,
    ) -> JobInfo | list[JobInfo]:
        """Block until the job, or all of several, ended.

        Logs a warning if no live agent could ever start one, or for half a minute none has had room for it.

        Args:
            raise_on_failure: raise as soon as one has failed or was stopped.
            timeout: seconds.
            fail_on_error: the same as `raise_on_failure`.
            job_ids: the same as `job_id`.

        Raises:
            JobFailed: see `raise_on_failure`; its cause is the job's own exception.
            TimeoutError: not all have ended in time. They go on.
            JobNotFound, JobGone: there is no such job, or no longer.
            InvalidInput: no id is given.
        """
        ...

    def monitor(self, job_id: JobId) -> JobInfo:
        """Print the job's output to stdout, from its beginning, until it has ended."""
        ...

    def logs(self, job_id: JobId, follow: bool = False) -> Iterator[LogLine]:
        """What the current or last attempt has printed; with `follow` all attempts until the job has ended."""
        ...

    def result(self, job_id: JobId, timeout: float | None = None) -> Any:
        """What the job's callable returned, or a command wrote to the file FRAY_RESULT names; waits for it.

        Raises:
            JobFailed: it failed or was stopped.
            NoResult: it succeeded without a result.
            TimeoutError: as `wait`.
        """
        ...

    def usage(self, job_id: JobId) -> ResourceUsage | None:
        """What the job's attempt uses now, as its agent told a few seconds ago at most; once it has ended, its totals.

        None before it was measured, and of threads, which nobody measures. Raises JobNotFound.
        """
        ...

    def terminate(self, job_id: JobId) -> None:
        """Ask that the job end, with its children; returns at once. A job that has ended is left as it is."""
        ...

    def list_jobs(self) -> list[JobInfo]:
        """Every job under the root, in order of submission; finished ones until retention removes them."""
        ...

    def close(self) -> None:
        """Let go of connections; the next call opens them again. Jobs go on; actors that this program owns end."""
        ...
