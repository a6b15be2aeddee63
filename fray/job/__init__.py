"""Tasks and objects inside one job, wherever they run.

ctx = create_job_ctx("threadpool", max_workers=8)
futures = [ctx.run(tokenize, shard) for shard in shards]
ready, pending = ctx.wait(futures, num_returns=1)
"""

from typing import TYPE_CHECKING

from fray.lazily import exported

if TYPE_CHECKING:
    from fray.job.cluster_context import ClusterContext
    from fray.job.context import JobContext, fray_default_job_ctx, get_default_job_ctx
    from fray.job.create import RayContext, create_job_ctx
    from fray.job.in_process import SyncContext, ThreadContext
    from fray.job.simple import SimpleActor

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

__getattr__, __dir__ = exported(
    __name__,
    {
        "fray.job.cluster_context": ["ClusterContext"],
        "fray.job.context": ["JobContext", "fray_default_job_ctx", "get_default_job_ctx"],
        "fray.job.create": ["RayContext", "create_job_ctx"],
        "fray.job.in_process": ["SyncContext", "ThreadContext"],
        "fray.job.simple": ["SimpleActor"],
    },
)
