"""What `fray` offers, under a second name; made by `make aliases`."""

from fray.job import (
    ClusterContext,
    JobContext,
    RayContext,
    SimpleActor,
    SyncContext,
    ThreadContext,
    create_job_ctx,
    fray_default_job_ctx,
    get_default_job_ctx,
)
from fray.job.context import (
    _job_context,
)

__all__ = [
    "ClusterContext",
    "JobContext",
    "RayContext",
    "SimpleActor",
    "SyncContext",
    "ThreadContext",
    "_job_context",
    "create_job_ctx",
    "fray_default_job_ctx",
    "get_default_job_ctx",
]
