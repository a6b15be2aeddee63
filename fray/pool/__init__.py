"""Pools of workers for tasks that keep nothing between them.

with WorkerPool(num_workers=4) as pool:
    print([future.result() for future in pool.map(len, ["a", "bb", "ccc"])])
"""

from typing import TYPE_CHECKING

from fray.lazily import exported

if TYPE_CHECKING:
    from fray.pool.dispatcher import PoolClosed, TaskKillsWorkers
    from fray.pool.objects import ObjectGone, ObjectRef
    from fray.pool.queue_transport import PoolNotFound
    from fray.pool.worker_pool import WorkerPool

__all__ = ["ObjectGone", "ObjectRef", "PoolClosed", "PoolNotFound", "TaskKillsWorkers", "WorkerPool"]

__getattr__, __dir__ = exported(
    __name__,
    {
        "fray.pool.dispatcher": ["PoolClosed", "TaskKillsWorkers"],
        "fray.pool.objects": ["ObjectGone", "ObjectRef"],
        "fray.pool.worker_pool": ["WorkerPool"],
        "fray.pool.queue_transport": ["PoolNotFound"],
    },
)
