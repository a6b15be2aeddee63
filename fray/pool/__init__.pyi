from fray.futures import TaskFuture as TaskFuture
from fray.pool.dispatcher import PoolClosed as PoolClosed, TaskKillsWorkers as TaskKillsWorkers
from fray.pool.pool_task import ObjectGone as ObjectGone, ObjectRef as ObjectRef
from fray.pool.queue_transport import PoolNotFound as PoolNotFound
from fray.pool.worker_pool import WorkerPool as WorkerPool
