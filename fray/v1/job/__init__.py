"""See `fray.job`; made by `make aliases`."""

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

__all__ = [
    "ClusterContext",
    "JobContext",
    "RayContext",
    "SimpleActor",
    "SyncContext",
    "ThreadContext",
    "create_job_ctx",
    "fray_default_job_ctx",
    "get_default_job_ctx",
]
