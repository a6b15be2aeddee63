"""Finds out whether this process runs on Ray, without importing Ray."""

import sys

from fray_coordinator.variables import read_variable

_SUBMITTED = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""A variable that Ray sets for programs that `ray job submit` runs, and for their subprocesses."""


def runs_in_ray() -> bool:
    """Whether this process is connected to Ray, or is part of a job that was submitted to Ray."""
    is_initialized = getattr(sys.modules.get("ray"), "is_initialized", None)
    return read_variable(_SUBMITTED) is not None or (is_initialized is not None and is_initialized())
