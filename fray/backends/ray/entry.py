"""The backend "ray": how roots such as "ray:auto" become clusters, clients and job contexts.

`fray.cluster.backends` imports this module. Ray is not imported before a cluster is used.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from fray.backends.ray.connection import AUTO
from fray_layouts.errors import InvalidInput
from fray_runtime.variables import read_variable

if TYPE_CHECKING:
    from collections.abc import Callable

    from fray.client.api import Client
    from fray.cluster.api import Cluster
    from fray.job.job_context import JobContext
    from fray.resources import ResourceConfig

_SUBMITTED = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""A variable that Ray sets for programs that `ray job submit` runs, and for their subprocesses."""


def root_of_this_process() -> str | None:
    """`AUTO` if this process is connected to Ray, or is part of a job that was submitted to Ray."""
    is_initialized = getattr(sys.modules.get("ray"), "is_initialized", None)
    runs_here = read_variable(_SUBMITTED) is not None or (is_initialized is not None and is_initialized())
    return AUTO if runs_here else None


def open_cluster(root: str) -> Cluster:
    """A `RayJobs`, or a `RayCluster` for the address of Ray's job submission API.

    Raises:
        InvalidInput: an option other than `namespace`.
    """
    from fray.backends.ray.jobs import RayJobs
    from fray.backends.ray.submission_api import RayCluster

    where, _, options = root.partition("?")
    option, _, namespace = options.partition("=")
    if option not in ("", "namespace"):
        raise InvalidInput("root", root, "for a Ray, give 'ray:auto', 'ray:host:6379' or 'ray:auto?namespace=name'")
    address = where.removeprefix("ray:")
    cluster = RayCluster if address.startswith(("http://", "https://")) else RayJobs
    return cluster(address if cluster is RayCluster else where, namespace or None)


def open_client(cluster: Cluster) -> Client:
    """A `RayClient`. Raises InvalidInput: the cluster is reached through Ray's job submission API only."""
    from fray.backends.ray.client import RayClient

    return RayClient(cluster)


def job_context(
    root: str, max_workers: int, resources: Callable[[], ResourceConfig], options: dict[str, Any]
) -> JobContext:
    """A `RayContext`, whose tasks are Ray's; Ray decides how many run at once."""
    from fray.backends.ray.job_context import RayContext
    from fray.cluster import current

    return RayContext(current.open_cluster(root), resources(), **options)
