"""Launching jobs and waiting for them.

cluster = current_cluster()
job = cluster.launch(JobRequest("train", Entrypoint.from_callable(train, args=(config,))))
cluster.wait(job, raise_on_failure=True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    JobGroupConfig,
    JobId,
    JobInfo,
    JobRequest,
    JobStatus,
    Namespace,
    ResourceConfig,
    TpuConfig,
)

if TYPE_CHECKING:
    from fray.rpc.resolver import ClusterResolver, FixedResolver, LocalResolver

__all__ = [
    "BinaryEntrypoint",
    "CallableEntrypoint",
    "Cluster",
    "ClusterResolver",
    "CpuConfig",
    "DeviceConfig",
    "Entrypoint",
    "EnvironmentConfig",
    "FixedResolver",
    "GpuConfig",
    "HealthCheck",
    "JobFailed",
    "JobGroupConfig",
    "JobId",
    "JobInfo",
    "JobRequest",
    "JobStatus",
    "LocalCluster",
    "LocalResolver",
    "Namespace",
    "NoResult",
    "ResourceConfig",
    "StorageCluster",
    "TpuConfig",
    "current_cluster",
    "open_cluster",
]


def __getattr__(name: str) -> Any:
    if name not in ("ClusterResolver", "FixedResolver", "LocalResolver"):
        raise AttributeError(f"module 'fray.cluster' has no attribute {name!r}")
    from fray.rpc import resolver  # which needs this module, and the transport

    return getattr(resolver, name)
