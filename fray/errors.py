"""Errors of the API. The base comes from `fray_layouts.errors`, those of store and services from below it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from fray_coordinator.errors import JobGone, JobNotFound, NameTaken, ParentNotRunning, StoreRefused, StoreUnavailable
from fray_layouts.errors import FrayError, InvalidInput, Permanent, Temporary

if TYPE_CHECKING:
    from fray.types import JobInfo, JobStatus

__all__ = [
    "ActorNotFoundError",
    "ActorUnavailableError",
    "CallInterrupted",
    "FrayError",
    "InvalidInput",
    "JobFailed",
    "JobGone",
    "JobNotFound",
    "NameTaken",
    "NoResult",
    "ParentNotRunning",
    "Permanent",
    "StoreRefused",
    "StoreUnavailable",
    "Temporary",
]


class JobFailed(Permanent, RuntimeError):
    """The job failed or was stopped; the message holds its traceback.

    Attributes:
        job_id, failed_status: which job, and how it ended.
        info: the job as it ended; None where a program made the error itself.

    `__cause__` is the exception that the job's callable raised, where it could be brought here.
    """

    def __init__(self, job_id: str, status: JobStatus, info: JobInfo | None = None) -> None:
        self.job_id = job_id
        self.failed_status = status
        self.info = info
        super().__init__(f"job {job_id} {status}{_how(info) if info is not None else ''}")

    @classmethod
    def of(cls, info: JobInfo) -> Self:
        """The error about a job as it ended."""
        return cls(info.job_id, info.status, info)

    def __reduce__(self) -> tuple[type, tuple[str, JobStatus, JobInfo | None]]:
        return type(self), (self.job_id, self.failed_status, self.info)


def _how(info: JobInfo) -> str:
    told = f" at attempt {info.attempt}: {info.error_message or 'it left no reason'}"
    trace = info.exit.traceback.rstrip() if info.exit is not None else ""
    return f"{told}\n\n{trace}" if trace else told


class NoResult(Permanent):
    """The job has no result, or none that can be read here.

    Only a callable returns one, or a command that writes the file FRAY_RESULT names.
    """


class ActorUnavailableError(Permanent, RuntimeError):
    """The actor has ended for good; create another one. The message names its job and its last error.

    `__cause__` is the exception that its `__init__` raised, or that it failed with, where it could be brought here.
    """


class ActorNotFoundError(Temporary, ConnectionError):
    """No actor of that name could be called in time; do the jobs that serve it run? Call again."""


class CallInterrupted(Temporary, ConnectionError):
    """The actor's process died while the call may have been running, so it was not made again.

    Make it again if running it twice does no harm, mark the method `idempotent`, or allow `max_task_retries`.
    """
