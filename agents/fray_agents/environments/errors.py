"""Errors about a job's environment: the job's own fault, or the host's trouble."""

from __future__ import annotations

from pathlib import Path

from fray_layouts.errors import FrayError, Permanent, Temporary


class PreparationFailed(FrayError):
    """An attempt's environment is not there. log: what was said while it was made, if anything was."""

    log: Path | None = None


class EnvironmentFailed(PreparationFailed, Permanent):
    """The job's environment cannot be made on any host; the job fails at once and spends no retry."""


class HostUnfit(PreparationFailed, Temporary):
    """This host cannot make the job's environment now; another one may."""
