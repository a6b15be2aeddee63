"""Fray: jobs, actors and queues whose whole control plane is an object-storage bucket.

The names below are imported when they are first used, so that `import fray` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fray.cluster import Cluster, LocalCluster, StorageCluster, current_cluster, open_cluster
    from fray.errors import FrayError, InvalidInput, JobFailed
    from fray.types import (
        CpuConfig,
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
    "Cluster",
    "CpuConfig",
    "Entrypoint",
    "EnvironmentConfig",
    "FrayError",
    "GpuConfig",
    "HealthCheck",
    "InvalidInput",
    "JobFailed",
    "JobId",
    "JobInfo",
    "JobRequest",
    "JobStatus",
    "LocalCluster",
    "Namespace",
    "ResourceConfig",
    "StorageCluster",
    "TpuConfig",
    "current_cluster",
    "open_cluster",
]

_HOMES = {
    "fray.cluster": {"Cluster", "LocalCluster", "StorageCluster", "current_cluster", "open_cluster"},
    "fray.errors": {"FrayError", "InvalidInput", "JobFailed"},
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fray' has no attribute {name!r}")
    home = next((module for module, names in _HOMES.items() if name in names), "fray.types")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return __all__
