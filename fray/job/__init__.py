"""Tasks and objects inside one job, wherever they run.

ctx = create_job_ctx("threadpool", max_workers=8)
futures = [ctx.run(tokenize, shard) for shard in shards]
ready, pending = ctx.wait(futures, num_returns=1)

Read `job_context` (the interface), `in_process`, `cluster_context` (on a worker pool) and `create`, which chooses.
"""

from fray.lazy_exports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
