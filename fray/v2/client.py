"""What `fray` offers, under a second name; made by `make aliases`."""

from fray.client import (
    Client,
    JobAlreadyExists,
    JobFailed,
    JobHandle,
    JobStatus,
    StorageClient,
    wait_all,
)
from fray.current_client import (
    current_client,
    set_current_client,
)

__all__ = [
    "Client",
    "JobAlreadyExists",
    "JobFailed",
    "JobHandle",
    "JobStatus",
    "StorageClient",
    "current_client",
    "set_current_client",
    "wait_all",
]
