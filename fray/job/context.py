"""The names of `fray.job` under the module path that older programs import."""

from fray.job.create import (
    _job_context as _job_context,
    create_job_ctx as create_job_ctx,
    fray_default_job_ctx as fray_default_job_ctx,
    get_default_job_ctx as get_default_job_ctx,
)
from fray.job.in_process import SyncContext as SyncContext, ThreadContext as ThreadContext
from fray.job.job_context import JobContext as JobContext
from fray.job.ray_context import RayContext as RayContext
