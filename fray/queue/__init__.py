"""Queues that deliver items at least once, in order and under leases, to consumers that come and go.

queue = FileQueue("gs://bucket/work")
queue.push_many(range(1000))

for lease in queue:
    with lease:
        work(lease.item)

The protocol is in `fray_coordinator.queue`; this package has the objects that programs use. Reading order: `api`,
`async_queue`, `lease`, `engine`, then the three engines: `file_queue`, `memory_queue`, `http_queue`.
"""

from fray.queue.api import Queue
from fray.queue.async_queue import AsyncQueue, DeadLetter
from fray.queue.engine import Counts, LeaseLost, UnknownLease, Unreadable
from fray.queue.file_queue import FileQueue
from fray.queue.http_queue import HttpQueue, HttpQueueServer
from fray.queue.lease import Lease
from fray.queue.memory_queue import MemoryQueue

__all__ = [
    "AsyncQueue",
    "Counts",
    "DeadLetter",
    "FileQueue",
    "HttpQueue",
    "HttpQueueServer",
    "Lease",
    "LeaseLost",
    "MemoryQueue",
    "Queue",
    "UnknownLease",
    "Unreadable",
]
