"""Errors about a job's environment: either the job's fault or the host's."""

from __future__ import annotations

from pathlib import Path

from fray_layouts.errors import FrayError, Permanent, Temporary

MAX_EXPLANATION = 2000
"""Most characters of a tool's own message, uv's or an engine's, in the job's record; the job's log has all of it."""


class PreparationFailed(FrayError):
    """An attempt's environment could not be prepared. log: output of the preparation, if there was any."""

    log: Path | None = None


class EnvironmentFailed(PreparationFailed, Permanent):
    """The job's environment cannot be built on any host; the job fails at once and uses no retry."""


class HostUnfit(PreparationFailed, Temporary):
    """This host cannot prepare the job's environment now; another one may."""
