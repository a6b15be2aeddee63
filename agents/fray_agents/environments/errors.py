"""Why a job's environment is not there: the job's own fault, or the host's trouble."""

from __future__ import annotations

from fray_layouts.errors import Permanent, Temporary


class EnvironmentFailed(Permanent):
    """The job's environment cannot be made on any host; the job fails at once and spends no retry."""


class HostUnfit(Temporary):
    """This host cannot make the job's environment now; another one may."""
