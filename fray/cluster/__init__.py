"""Launching jobs and waiting for them.

cluster = current_cluster()
job = cluster.launch(JobRequest("train", Entrypoint.from_callable(train, args=(config,))))
cluster.wait(job, raise_on_failure=True)
"""

from fray.cluster.api import Cluster
from fray.cluster.current import current_cluster, open_cluster
from fray.cluster.local import LocalCluster
from fray.cluster.storage import StorageCluster
from fray.errors import JobFailed, NoResult
from fray.types import (
    BinaryEntrypoint,
    CallableEntrypoint,
    CpuConfig,
    DeviceConfig,
    Entrypoint,
    EnvironmentConfig,
    GpuConfig,
    HealthCheck,
    JobId,
    JobInfo,
    JobRequest,
    JobStatus,
    Namespace,
    ResourceConfig,
    TpuConfig,
)

__all__ = [
    "BinaryEntrypoint",
    "CallableEntrypoint",
    "Cluster",
    "CpuConfig",
    "DeviceConfig",
    "Entrypoint",
    "EnvironmentConfig",
    "GpuConfig",
    "HealthCheck",
    "JobFailed",
    "JobId",
    "JobInfo",
    "JobRequest",
    "JobStatus",
    "LocalCluster",
    "Namespace",
    "NoResult",
    "ResourceConfig",
    "StorageCluster",
    "TpuConfig",
    "current_cluster",
    "open_cluster",
]
