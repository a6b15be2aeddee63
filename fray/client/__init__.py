"""Clients: one object that submits jobs and creates actors.

with set_current_client(StorageClient("gs://bucket/fray")) as client:
    jobs = [client.submit(JobRequest(f"part-{i}", Entrypoint.from_callable(work, args=(i,)))) for i in range(100)]
    wait_all(jobs)

With a client, programs need neither a cluster object nor `fray.actor`. Reading order: `api` (the interface),
`storage_client`, `fray.local_backend`, `fray.current_client`.
"""

from fray.client.api import Client
from fray.client.storage_client import StorageClient
from fray.cluster.job_handle import JobAlreadyExists, JobHandle, wait_all, wait_all_async
from fray.errors import JobFailed
from fray.types import JobStatus

__all__ = [
    "Client",
    "JobAlreadyExists",
    "JobFailed",
    "JobHandle",
    "JobStatus",
    "StorageClient",
    "wait_all",
    "wait_all_async",
]
