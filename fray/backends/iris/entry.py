"""The backend "iris": how roots such as "iris:auto" become clusters and clients.

`fray.cluster.backends` imports this module. Iris is not imported before a cluster is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fray.backends.iris.connection import AUTO, in_iris_job
from fray_layouts.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from fray.client.api import Client
    from fray.cluster.api import Cluster
    from fray.job.job_context import JobContext
    from fray.resources import ResourceConfig


def root_of_this_process() -> str | None:
    """`AUTO` if this process is a task of an Iris job."""
    return AUTO if in_iris_job() else None


def open_cluster(root: str) -> Cluster:
    """An `IrisCluster`. Raises InvalidInput: the root has no colon, and so may be meant as a folder."""
    if not root.startswith("iris:"):
        raise InvalidInput("root", root, "for an Iris, give 'iris://host:port' or 'iris:auto'; for a folder './iris'")
    from fray.backends.iris.cluster import IrisCluster

    return IrisCluster(root)


def open_client(cluster: Cluster) -> Client:
    """A `FrayIrisClient`, for an `IrisCluster`."""
    from fray.backends.iris.client import FrayIrisClient

    return FrayIrisClient(cluster)


def job_context(
    root: str, max_workers: int, resources: Callable[[], ResourceConfig], options: dict[str, Any]
) -> JobContext:
    """Threads of this process: on Iris each task would be a job of its own."""
    from fray.job.in_process import ThreadContext

    return ThreadContext(max_workers)
