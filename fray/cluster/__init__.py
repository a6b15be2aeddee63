"""Launching jobs and waiting for them.

cluster = current_cluster()
job = cluster.launch(JobRequest("train", Entrypoint.from_callable(train, args=(config,))))
cluster.wait(job, raise_on_failure=True)

The names below are imported when they are first used: a job that only calls others needs no agent's code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fray.lazily import exported

if TYPE_CHECKING:
    from fray.cluster.api import Cluster
    from fray.cluster.current import create_cluster, current_cluster, open_cluster, set_current_cluster
    from fray.cluster.local import LocalCluster
    from fray.cluster.storage import StorageCluster
    from fray.errors import JobFailed, NoResult
    from fray.rpc.resolver import ClusterResolver, FixedResolver, LocalResolver
    from fray.types import (
        ANY_REGION,
        BinaryEntrypoint,
        CallableEntrypoint,
        CpuConfig,
        DeviceConfig,
        DeviceKind,
        Entrypoint,
        EnvironmentConfig,
        GpuConfig,
        GpuType,
        HealthCheck,
        JobGroupConfig,
        JobId,
        JobInfo,
        JobRequest,
        JobStatus,
        Namespace,
        ReservationConfig,
        ResourceConfig,
        TpuConfig,
        TpuTopologyInfo,
        TpuType,
        create_environment,
        get_tpu_topology,
    )

__all__ = [
    "ANY_REGION",
    "BinaryEntrypoint",
    "CallableEntrypoint",
    "Cluster",
    "ClusterResolver",
    "CpuConfig",
    "DeviceConfig",
    "DeviceKind",
    "Entrypoint",
    "EnvironmentConfig",
    "FixedResolver",
    "GpuConfig",
    "GpuType",
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
    "ReservationConfig",
    "ResourceConfig",
    "StorageCluster",
    "TpuConfig",
    "TpuTopologyInfo",
    "TpuType",
    "create_cluster",
    "create_environment",
    "current_cluster",
    "get_tpu_topology",
    "open_cluster",
    "set_current_cluster",
]

__getattr__, __dir__ = exported(
    __name__,
    {
        "fray.cluster.api": ["Cluster"],
        "fray.cluster.current": ["create_cluster", "current_cluster", "open_cluster", "set_current_cluster"],
        "fray.cluster.local": ["LocalCluster"],
        "fray.cluster.storage": ["StorageCluster"],
        "fray.errors": ["JobFailed", "NoResult"],
        "fray.rpc.resolver": ["ClusterResolver", "FixedResolver", "LocalResolver"],
        "fray.types": [
            "ANY_REGION",
            "BinaryEntrypoint",
            "CallableEntrypoint",
            "CpuConfig",
            "DeviceConfig",
            "DeviceKind",
            "Entrypoint",
            "EnvironmentConfig",
            "GpuConfig",
            "GpuType",
            "HealthCheck",
            "JobGroupConfig",
            "JobId",
            "JobInfo",
            "JobRequest",
            "JobStatus",
            "Namespace",
            "ReservationConfig",
            "ResourceConfig",
            "TpuConfig",
            "TpuTopologyInfo",
            "TpuType",
            "create_environment",
            "get_tpu_topology",
        ],
    },
)
