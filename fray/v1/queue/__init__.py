"""See `fray.queue`; made by `make aliases`."""

from fray.queue import (
    AsyncQueue,
    Counts,
    DeadLetter,
    FileQueue,
    HttpQueue,
    HttpQueueServer,
    Lease,
    LeaseLost,
    MemoryQueue,
    Queue,
    UnknownLease,
    Unreadable,
)

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
