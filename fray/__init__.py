"""Fray: jobs, actors and queues whose whole control plane is an object-storage bucket.

The names below are imported when they are first used, so that `import fray` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fray.lazily import exported

if TYPE_CHECKING:
    from fray.actor import ActorFuture, ActorGroup, ActorHandle, ActorMethod, current_actor
    from fray.client import Client, JobHandle, StorageClient, wait_all
    from fray.cluster import Cluster, LocalCluster, StorageCluster, current_cluster, open_cluster
    from fray.current_client import current_client, set_current_client
    from fray.errors import FrayError, InvalidInput, JobAlreadyExists, JobFailed
    from fray.local_backend import LocalClient
    from fray.types import (
        ANY_REGION,
        ActorConfig,
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
        JobId,
        JobInfo,
        JobRequest,
        JobStatus,
        Namespace,
        ResourceConfig,
        TpuConfig,
        TpuTopologyInfo,
        TpuType,
        create_environment,
        get_tpu_topology,
    )

__all__ = [
    "ANY_REGION",
    "ActorConfig",
    "ActorFuture",
    "ActorGroup",
    "ActorHandle",
    "ActorMethod",
    "BinaryEntrypoint",
    "CallableEntrypoint",
    "Client",
    "Cluster",
    "CpuConfig",
    "DeviceConfig",
    "DeviceKind",
    "Entrypoint",
    "EnvironmentConfig",
    "FrayError",
    "GpuConfig",
    "GpuType",
    "HealthCheck",
    "InvalidInput",
    "JobAlreadyExists",
    "JobFailed",
    "JobHandle",
    "JobId",
    "JobInfo",
    "JobRequest",
    "JobStatus",
    "LocalClient",
    "LocalCluster",
    "Namespace",
    "ResourceConfig",
    "StorageClient",
    "StorageCluster",
    "TpuConfig",
    "TpuTopologyInfo",
    "TpuType",
    "create_environment",
    "current_actor",
    "current_client",
    "current_cluster",
    "get_tpu_topology",
    "open_cluster",
    "set_current_client",
    "wait_all",
]

__getattr__, __dir__ = exported(
    __name__,
    {
        "fray.actor": ["ActorFuture", "ActorGroup", "ActorHandle", "ActorMethod", "current_actor"],
        "fray.client": ["Client", "JobHandle", "StorageClient", "wait_all"],
        "fray.cluster": ["Cluster", "LocalCluster", "StorageCluster", "current_cluster", "open_cluster"],
        "fray.current_client": ["current_client", "set_current_client"],
        "fray.errors": ["FrayError", "InvalidInput", "JobAlreadyExists", "JobFailed"],
        "fray.local_backend": ["LocalClient"],
        "fray.types": [
            "ANY_REGION",
            "ActorConfig",
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
            "JobId",
            "JobInfo",
            "JobRequest",
            "JobStatus",
            "Namespace",
            "ResourceConfig",
            "TpuConfig",
            "TpuTopologyInfo",
            "TpuType",
            "create_environment",
            "get_tpu_topology",
        ],
    },
)
