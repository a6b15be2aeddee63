"""See `fray.client` and `fray.current_client`."""

from fray.client import Client, JobAlreadyExists, JobFailed, JobHandle, StorageClient, wait_all
from fray.current_client import current_client, set_current_client

__all__ = [
    "Client",
    "JobAlreadyExists",
    "JobFailed",
    "JobHandle",
    "StorageClient",
    "current_client",
    "set_current_client",
    "wait_all",
]
