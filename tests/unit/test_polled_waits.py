"""`wait` on clusters that have to poll each job, such as Iris and Ray's job submission API."""

import itertools
from collections.abc import Iterator

import pytest

from fray.backends.without_storage import ClusterWithoutStorage
from fray.errors import JobFailed
from fray.types import JobId, JobInfo, JobStatus


class PolledCluster(ClusterWithoutStorage):
    """A cluster whose jobs have these statuses in successive polls; the last one stays."""

    root = "polled:"

    def __init__(self, **jobs: list[JobStatus]) -> None:
        self._jobs: dict[str, Iterator[JobStatus]] = {
            job: itertools.chain(seen, itertools.repeat(seen[-1])) for job, seen in jobs.items()
        }

    def poll(self, job_id: str) -> JobInfo:
        return JobInfo(JobId(job_id), job_id, next(self._jobs[job_id]))

    def _wait(self, ids: list[str], raise_on_failure: bool, timeout: float | None) -> list[JobInfo]:
        return self._poll_until_ended(ids, raise_on_failure, timeout, itertools.repeat(0.001))


def polled(**jobs: list[JobStatus]) -> ClusterWithoutStorage:
    return PolledCluster(**jobs)  # type: ignore[abstract]  # a wait needs nothing else


def test_jobs_are_polled_until_all_have_ended() -> None:
    cluster = polled(a=[JobStatus.PENDING, JobStatus.RUNNING, JobStatus.SUCCEEDED], b=[JobStatus.FAILED])
    assert [info.status for info in cluster.wait(["a", "b"])] == [JobStatus.SUCCEEDED, JobStatus.FAILED]


def test_a_failure_is_raised_while_others_run() -> None:
    with pytest.raises(JobFailed, match="job b failed"):
        polled(a=[JobStatus.RUNNING], b=[JobStatus.FAILED]).wait(["a", "b"], raise_on_failure=True)


def test_a_wait_that_is_too_long_names_a_job_and_its_status() -> None:
    with pytest.raises(TimeoutError, match=r"1 of 2 jobs have not ended after 0\.01 s; a is running"):
        polled(a=[JobStatus.RUNNING], b=[JobStatus.STOPPED]).wait(["a", "b"], timeout=0.01)
