"""Launching jobs and waiting for them.

cluster = current_cluster()
job = cluster.launch(JobRequest("train", Entrypoint.from_callable(train, args=(config,))))
cluster.wait(job, raise_on_failure=True)

The names below are imported when they are first used: a job that only calls others needs no agent's code.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fray.cluster.api import Cluster
    from fray.cluster.current import current_cluster, open_cluster
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
    "ResourceConfig",
    "StorageCluster",
    "TpuConfig",
    "TpuTopologyInfo",
    "TpuType",
    "create_environment",
    "current_cluster",
    "get_tpu_topology",
    "open_cluster",
]

_HOMES = {
    "Cluster": "fray.cluster.api",
    "ClusterResolver": "fray.rpc.resolver",
    "FixedResolver": "fray.rpc.resolver",
    "JobFailed": "fray.errors",
    "LocalCluster": "fray.cluster.local",
    "LocalResolver": "fray.rpc.resolver",
    "NoResult": "fray.errors",
    "StorageCluster": "fray.cluster.storage",
    "current_cluster": "fray.cluster.current",
    "open_cluster": "fray.cluster.current",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fray.cluster' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "fray.types")), name)


def __dir__() -> list[str]:
    return __all__
