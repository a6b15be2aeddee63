"""`IrisCluster`: jobs on the controller of an Iris cluster."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Generator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from fray import sync
from fray.backends.iris.connection import AUTO, connect
from fray.backends.iris.requests import submission
from fray.backends.without_storage import ClusterWithoutStorage
from fray.call_forms import says_form
from fray.cluster.arguments import LAUNCH, checked_id, checked_request
from fray.errors import NoResult
from fray.items import Items, ThreadItems
from fray.types import (
    JobId,
    JobInfo,
    JobRequest,
    JobStatus,
    Namespace,
)
from fray_coordinator.backoff import backoff
from fray_coordinator.errors import JobNotFound
from fray_coordinator.jobs.logs import LogLine
from fray_layouts.errors import InvalidInput
from fray_layouts.records import ResourceUsage

_STATUSES = {
    "pending": JobStatus.PENDING,
    "building": JobStatus.PENDING,
    "running": JobStatus.RUNNING,
    "succeeded": JobStatus.SUCCEEDED,
    "failed": JobStatus.FAILED,
    "killed": JobStatus.STOPPED,
    "worker_failed": JobStatus.FAILED,
    "unschedulable": JobStatus.FAILED,
}
"""The status here for each state of an Iris job. A job in an unknown state counts as running."""

_POLL_PAUSES = 0.05, 2.0, 1.5
"""First and longest pause in seconds between two polls of a job during a wait, and the factor from one to the next.
Each poll is a small request to the controller."""


class IrisCluster(ClusterWithoutStorage):
    """A cluster whose jobs run on Iris. It pickles as its root. In a task of Iris it uses the task's own controller.

    Args:
        root: "iris://host:port", or "iris:auto" within Iris.
        workspace: the folder with a pyproject.toml that Iris sends along with jobs; children use that of their parent.

    Raises:
        InvalidInput: Iris is not installed, or `root` is "iris:auto" outside of Iris.
    """

    _scheduler = "Iris"

    def __init__(self, root: str = AUTO, workspace: str | os.PathLike[str] | None = None) -> None:
        self.root = root
        self._workspace = None if workspace is None else Path(workspace)
        self.iris = connect(root, self._workspace)

    @property
    def namespace(self) -> Namespace:
        from iris.cluster.client.job_info import get_job_info, resolve_job_user

        mine = get_job_info()
        return Namespace(str(mine.job_id.root_job if mine is not None else resolve_job_user(None)))

    @says_form(LAUNCH)
    def launch(self, request: JobRequest) -> JobId:
        return self.submit(request, f"{checked_request(request).name}-{secrets.token_hex(4)}", adopt=False)

    def submit(self, request: JobRequest, name: str, adopt: bool) -> JobId:
        """Submit a job under the given name, or with `adopt` return the unfinished job that has the name.

        Raises:
            iris.client.JobAlreadyExists: an unfinished job has the name, and `adopt` is False.
            InvalidInput: as `launch`.
        """
        from iris.rpc import job_pb2

        policy = job_pb2.EXISTING_JOB_POLICY_KEEP if adopt else job_pb2.EXISTING_JOB_POLICY_UNSPECIFIED
        job = self.iris.submit(name=name, existing_job_policy=policy, **submission(checked_request(request)))
        return JobId(str(job.job_id), self.poll)

    def poll(self, job_id: str) -> JobInfo:
        return _info(self._ask(job_id, "job_status"))

    def _wait(self, ids: list[str], raise_on_failure: bool, timeout: float | None) -> list[JobInfo]:
        return self._poll_until_ended(ids, raise_on_failure, timeout, backoff(*_POLL_PAUSES))

    async def _wait_async(self, ids: list[str], raise_on_failure: bool, timeout: float | None) -> list[JobInfo]:
        return await sync.in_thread(partial(self._wait, ids, raise_on_failure, timeout))

    def monitor(self, job_id: str) -> JobInfo:
        for line in self.logs(job_id, follow=True):
            print(line, flush=True)
        return self.poll(job_id)

    def logs(self, job_id: str, follow: bool = False, replica: int | None = None) -> Items[LogLine]:
        printed = self._ask(job_id, "job")
        if replica is not None:
            replicas = self.poll(job_id).replicas
            if not 0 <= replica < replicas:
                raise InvalidInput("replica", replica, f"{job_id} has replicas 0 to {replicas - 1}")
            printed = printed.task(replica)
        return ThreadItems(_lines(printed.follow_logs if follow else printed.logs))

    def _last_lines(self, job_id: str, count: int) -> Sequence[LogLine]:
        return list(_lines(partial(self._ask(job_id, "job").logs, max_lines=count, tail=bool(count))))

    def result(self, job_id: str, timeout: float | None = None) -> Any:
        self.wait(job_id, raise_on_failure=True, timeout=timeout)
        raise NoResult(f"Iris keeps no results of jobs, also not of {job_id}; write them to storage, or call an actor")

    def results(self, job_id: str, timeout: float | None = None) -> list[Any]:
        return [self.result(job_id, timeout)]

    async def result_async(self, job_id: str, timeout: float | None = None) -> Any:
        return await sync.in_thread(partial(self.result, job_id, timeout))

    def usage(self, job_id: str) -> ResourceUsage | None:
        self.poll(job_id)
        return None

    def terminate(self, job_id: str) -> None:
        self._ask(job_id, "cancel_job")

    def list_jobs(self) -> list[JobInfo]:
        return sorted((_info(status) for status in self.iris.list_jobs()), key=lambda info: info.submit_time or 0.0)

    def _check(self, request: JobRequest) -> None:
        submission(request)

    def _ask(self, job_id: str, what: str) -> Any:
        """Call a method of Iris's client that takes a job's id. Raises JobNotFound if there is no such job."""
        from connectrpc.code import Code
        from connectrpc.errors import ConnectError
        from iris.cluster.types import JobName

        try:
            return getattr(self.iris, what)(JobName.from_string(checked_id(job_id)))
        except ValueError:
            raise JobNotFound(job_id) from None
        except ConnectError as error:
            if error.code is not Code.NOT_FOUND:
                raise
            raise JobNotFound(job_id) from None

    def __reduce__(self) -> tuple[type[IrisCluster], tuple[str, Path | None]]:
        return IrisCluster, (self.root, self._workspace)

    def __eq__(self, other: object) -> bool:
        mine = self.root, self._workspace
        return isinstance(other, IrisCluster) and mine == (other.root, other._workspace)

    def __hash__(self) -> int:
        return hash((self.root, self._workspace))

    def __repr__(self) -> str:
        return f"IrisCluster({self.root!r})"


def _info(status: Any) -> JobInfo:
    """Convert Iris's status of a job to a JobInfo."""
    ours = _STATUSES.get(str(status.state), JobStatus.RUNNING)
    spent = status.failure_count + status.preemption_count
    reason = status.error_message or status.pending_reason or None
    return JobInfo(
        job_id=JobId(str(status.job_id)),
        name=status.job_id.name,
        status=ours,
        namespace=Namespace(str(status.job_id.root_job)),
        error_message=None if ours is JobStatus.SUCCEEDED else reason,
        attempt=max(1, spent if ours is JobStatus.FAILED else spent + 1),
        replicas=status.task_count or 1,
        parent=JobId(str(status.parent_job_id)) if status.parent_job_id is not None else None,
        failures=status.failure_count,
        preemptions=status.preemption_count,
        submit_time=_seconds(status.submitted_at),
        start_time=_seconds(status.started_at),
        end_time=_seconds(status.finished_at),
    )


def _seconds(time: Any) -> float | None:
    return None if time is None else time.epoch_ms() / 1000.0


def _lines(read: Callable[[], Any]) -> Generator[LogLine, None, None]:
    for entry in read():
        when = datetime.fromtimestamp(entry.timestamp.epoch_ms() / 1000.0, UTC).isoformat(timespec="microseconds")
        stream = entry.source if entry.source in ("stdout", "stderr") else "stderr"
        replica = entry.task_id.require_task()[1] if entry.task_id.is_task else 0
        yield LogLine(entry.attempt_id + 1, replica, when, stream, entry.data.encode(), True)
