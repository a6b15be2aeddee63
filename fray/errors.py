"""Errors of the API. The base comes from `fray_layouts.errors`, those of store and services from below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fray_coordinator.errors import JobGone, JobNotFound, NameTaken, ParentNotRunning, StoreRefused, StoreUnavailable
from fray_layouts.errors import FrayError, InvalidInput, Permanent, Temporary

if TYPE_CHECKING:
    from fray.client import JobHandle
    from fray.types import JobInfo, JobStatus

__all__ = [
    "ActorNotFoundError",
    "ActorUnavailableError",
    "CallInterrupted",
    "FrayError",
    "InvalidInput",
    "JobAlreadyExists",
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
        info: the job as it ended.
        job_id, failed_status: the same, as callers of `fray.client` know them.

    `__cause__` is the exception that the job's callable raised, where it could be brought here.
    """

    def __init__(self, info: JobInfo) -> None:
        self.info = info
        reason = info.error_message or "it left no reason"
        text = f"job {info.job_id} {info.status} at attempt {info.attempt}: {reason}"
        if info.exit is not None and info.exit.traceback:
            text = f"{text}\n\n{info.exit.traceback.rstrip()}"
        super().__init__(text)

    @property
    def job_id(self) -> str:
        return self.info.job_id

    @property
    def failed_status(self) -> JobStatus:
        return self.info.status

    def __reduce__(self) -> tuple[type, tuple[JobInfo]]:
        return type(self), (self.info,)


class JobAlreadyExists(Permanent, RuntimeError):
    """A job of that name runs in this namespace; adopt it, wait for it, or choose another name.

    Attributes:
        job_name: the name that is in use.
        handle: the job that has it.
    """

    def __init__(self, job_name: str, handle: JobHandle) -> None:
        self.job_name = job_name
        self.handle = handle
        super().__init__(
            f"a job named {job_name} runs already: {handle.job_id}; submit with adopt_existing=True to go on with it, "
            "or choose another name"
        )

    def __reduce__(self) -> tuple[type, tuple[str, JobHandle]]:
        return type(self), (self.job_name, self.handle)


class NoResult(Permanent):
    """The job has no result: only a callable returns one, or a command that writes the file FRAY_RESULT names."""


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
