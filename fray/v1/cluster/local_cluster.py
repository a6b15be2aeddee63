"""See `fray.cluster.local`; made by `make aliases`."""

from fray.cluster.local import (
    LocalCluster,
    LocalClusterConfig,
)

__all__ = [
    "LocalCluster",
    "LocalClusterConfig",
]
