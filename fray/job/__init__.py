"""Job contexts: run tasks and share objects inside one job, on threads, on workers or on Ray.

ctx = create_job_ctx("threadpool", max_workers=8)
futures = [ctx.run(tokenize, shard) for shard in shards]
ready, pending = ctx.wait(futures, num_returns=1)

Reading order: `job_context` (the interface), `in_process`, `cluster_context` (on a worker pool), `contexts`
(the choice between them).
"""

from fray.lazy_exports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
