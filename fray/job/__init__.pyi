from fray.backends.ray.job_context import RayContext as RayContext
from fray.job.cluster_context import ClusterContext as ClusterContext
from fray.job.contexts import (
    create_job_ctx as create_job_ctx,
    fray_default_job_ctx as fray_default_job_ctx,
    get_default_job_ctx as get_default_job_ctx,
)
from fray.job.in_process import SyncContext as SyncContext, ThreadContext as ThreadContext
from fray.job.job_context import JobContext as JobContext, SimpleActor as SimpleActor
