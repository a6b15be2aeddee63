"""Pools of workers for tasks that keep nothing between them.

with WorkerPool(num_workers=4) as pool:
    print([future.result() for future in pool.map(len, ["a", "bb", "ccc"])])

Job contexts and pipelines run their tasks on pools. Read `worker_pool` and `transport`; then, for workers that are
called directly, `direct_transport`, `dispatcher` and `worker_supervisor`; for tasks in a queue, `queue_transport`,
`queue_worker` and `monitor`; `diagnosis` says why workers are missing.
"""

from fray.lazy_exports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
