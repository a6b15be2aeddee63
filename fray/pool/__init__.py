"""Worker pools: workers that run independent tasks.

with WorkerPool(num_workers=4) as pool:
    print([future.result() for future in pool.map(len, ["a", "bb", "ccc"])])

Job contexts and pipelines run their tasks on pools. Reading order: `worker_pool` and `transport`; for workers that are
called directly, `direct_transport`, `dispatcher` and `worker_supervisor`; for tasks in a queue, `queue_transport`,
`queue_worker` and `monitor`; then `diagnosis`, which finds out why workers are missing.
"""

from fray.lazy_exports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
