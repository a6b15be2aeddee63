"""Errors of the API. The base comes from `fray_layouts.errors`, those of store and services from below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fray_layouts.errors import FrayError, InvalidInput, Permanent, Temporary

if TYPE_CHECKING:
    from fray.types import JobInfo

__all__ = ["FrayError", "InvalidInput", "JobFailed", "NoResult", "Permanent", "Temporary"]


class JobFailed(Permanent):
    """The job failed or was stopped; the message holds its traceback.

    Attributes:
        info: the job as it ended.

    `__cause__` is the exception that the job's callable raised, where it could be brought here.
    """

    def __init__(self, info: JobInfo) -> None:
        self.info = info
        reason = info.error_message or "it left no reason"
        text = f"job {info.job_id} {info.status} at attempt {info.attempt}: {reason}"
        if info.exit is not None and info.exit.traceback:
            text = f"{text}\n\n{info.exit.traceback.rstrip()}"
        super().__init__(text)

    def __reduce__(self) -> tuple[type, tuple[JobInfo]]:
        return type(self), (self.info,)


class NoResult(Permanent):
    """The job has no result: only a callable returns one, or a command that writes the file FRAY_RESULT names."""
