"""The errors of the API: those of jobs and actors, and those of the packages below.

All are `FrayError`. After a `Temporary` one the call may succeed when it is made again; after a `Permanent` one it will
not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from fray_coordinator.errors import (
    JobGone,
    JobNotFound,
    NameTaken,
    ParentNotRunning,
    ReservationNotFound,
    StoreRefused,
    StoreUnavailable,
)
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
    "NoOutputs",
    "NoResult",
    "ParentNotRunning",
    "Permanent",
    "ReservationNotFound",
    "StoreRefused",
    "StoreUnavailable",
    "Temporary",
]


class JobFailed(Permanent, RuntimeError):
    """The job failed or was stopped; the message has its traceback.

    `__cause__` is the exception that the job's callable raised, if this process can load it.

    Attributes:
        job_id: the job's id.
        failed_status: the job's final status: `JobStatus.FAILED` or `JobStatus.STOPPED`.
        info: the final state of the job; None if a program made the error itself.
    """

    def __init__(self, job_id: str, status: JobStatus, info: JobInfo | None = None) -> None:
        self.job_id = job_id
        self.failed_status = status
        self.info = info
        super().__init__(f"job {job_id} {status}{_failure_text(info) if info is not None else ''}")

    @classmethod
    def of(cls, info: JobInfo) -> Self:
        """Make the error for a job that has failed or was stopped."""
        return cls(info.job_id, info.status, info)

    def __reduce__(self) -> tuple[type, tuple[str, JobStatus, JobInfo | None]]:
        return type(self), (self.job_id, self.failed_status, self.info)


def _failure_text(info: JobInfo) -> str:
    reason = f" at attempt {info.attempt}: {info.error_message or 'it left no reason'}"
    trace = info.exit.traceback.rstrip() if info.exit is not None else ""
    return f"{reason}\n\n{trace}" if trace else reason


class NoResult(Permanent):
    """The job has no result, or its result cannot be read here; the message says which.

    Callables return one; a command has one if it writes the file that FRAY_RESULT names.
    """


class NoOutputs(Permanent):
    """The job has no outputs, or none at that path, or they cannot be read or written here; the message says which.

    A job that succeeds keeps the files that `JobRequest(outputs=[...])` names.
    """


class ActorUnavailableError(Permanent, RuntimeError):
    """The actor has ended for good; create another one. The message names its job and its last error.

    `__cause__` is the exception that its `__init__` raised, or that it failed with, if this process can load it.
    """


class ActorNotFoundError(Temporary, ConnectionError):
    """No actor of that name could be called in time. Check that the jobs that serve it run, and call again."""


class CallInterrupted(Temporary, ConnectionError):
    """The actor's process died while the call may have been running, so the call was not made again.

    Make it again if running it twice does no harm. To have that done automatically, mark the method `idempotent`, or
    allow `ActorConfig.max_task_retries`.
    """
