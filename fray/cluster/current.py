"""The current cluster of a thread or coroutine, and opening clusters by their roots."""

import os
import threading
from contextvars import ContextVar

from fray.cluster.api import Cluster
from fray.cluster.iris.connection import AUTO as IRIS, in_iris_job, is_iris
from fray.cluster.ray.connection import AUTO as RAY, is_ray
from fray.cluster.ray.detection import runs_in_ray
from fray.cluster.registry import local_clusters
from fray.cluster.storage import StorageCluster
from fray_agents.tasks.current_task import task_environ
from fray_layouts.errors import InvalidInput

_lock = threading.Lock()
_clusters: dict[str, Cluster] = {}

_chosen: ContextVar[Cluster | None] = ContextVar("fray_cluster", default=None)


def set_current_cluster(cluster: Cluster | None) -> None:
    """Make `cluster` the current one of this thread or coroutine from now on.

    Args:
        cluster: what `current_cluster` returns; None makes it the environment's again.
    """
    _chosen.set(cluster)


def current_cluster() -> Cluster:
    """The cluster that `set_current_cluster` chose, else the one that FRAY_CLUSTER_SPEC names.

    In a job FRAY_CLUSTER_SPEC names the cluster that runs the job, and what is launched there becomes the job's child.
    Without it, it is the Iris that runs this process, or the Ray that this process is connected to, or that runs the
    Ray job that it is part of. Without these, or with "local", it is a `LocalCluster` that this process shares, and
    that ends with it.

    Raises:
        InvalidInput: FRAY_CLUSTER_SPEC names nothing that `open_cluster` can open.
    """
    return _chosen.get() or environment_cluster()


def environment_cluster() -> Cluster:
    """The cluster that `environment_root` names, or a `LocalCluster` for the whole process if it names none.

    What a job in a thread of this process launches there are threads too.
    """
    cluster = open_cluster(environment_root() or "local")
    in_thread = task_environ() is not os.environ
    return cluster.threads if isinstance(cluster, StorageCluster) and in_thread else cluster


def environment_root() -> str | None:
    """The root of the cluster that this code is to work on: of FRAY_CLUSTER_SPEC, else the Iris or Ray around it.

    None: there is none of these.
    """
    if named := task_environ().get("FRAY_CLUSTER_SPEC"):
        return named
    return IRIS if in_iris_job() else RAY if runs_in_ray() else None


def open_cluster(root: str) -> Cluster:
    """The cluster under a root; always the same object for the same text. `create_cluster` is the same function.

    Nothing is read or written until the cluster is used.

    Args:
        root: `gs://bucket/prefix`, `s3://bucket/prefix`, `file:///path`, a path, `memory://name`, or "local": a
            private cluster whose jobs are processes of this machine. With "local?use_isolated_env=False" they are
            threads of this process. "ray:auto" is the Ray that this process runs in, is connected to, or finds on this
            machine or at RAY_ADDRESS; "ray:host:6379" and "ray://host:10001" are those at these addresses;
            "ray:http://host:8265" is reached through its job submission API. "iris://host:port" is the controller of
            an Iris, "iris:auto" the one that runs this process.

    Raises:
        InvalidInput: the root is a local one with another option.
    """
    kind, _, options = root.partition("?")
    if (local := local_clusters.get(root)) is not None:
        return local
    with _lock:
        if root not in _clusters:
            _clusters[root] = _opened(root, kind, options)
        return _clusters[root]


create_cluster = open_cluster


def storage_cluster(given: object = None) -> StorageCluster:
    """The given cluster, by default the current one, for what keeps its records in storage.

    Raises:
        InvalidInput: it is none, or none in storage; or as `current_cluster`.
    """
    cluster = current_cluster() if given is None else given
    if isinstance(cluster, StorageCluster):
        return cluster
    remedy = "this works through storage, which there is not on Ray or Iris; use LocalCluster() or StorageCluster(root)"
    raise InvalidInput("cluster", getattr(cluster, "root", cluster), remedy)


def opened_clusters() -> list[StorageCluster]:
    """The current cluster, and the others in storage that this process has opened.

    If the current one would be a private cluster that was not made yet, it is left out: no actor could be there.
    """
    spec = environment_root() or "local"
    is_private = _chosen.get() is None and spec.partition("?")[0] == "local"
    with _lock:
        known: list[Cluster] = [*_clusters.values(), *local_clusters.values()]
    opened = dict.fromkeys(known if is_private else [current_cluster(), *known])
    return [cluster for cluster in opened if isinstance(cluster, StorageCluster)]


def _opened(root: str, kind: str, options: str) -> Cluster:
    if kind == "local":
        return _open_local(root, options)
    if is_ray(root):
        return _open_ray(root)
    if is_iris(root):
        from fray.cluster.iris.cluster import IrisCluster  # few processes work with Iris

        return IrisCluster(root)
    return StorageCluster(root)


def _open_ray(root: str) -> Cluster:
    from fray.cluster.ray.jobs import RayJobs  # few processes work with Ray
    from fray.cluster.ray.submission import RayCluster

    where, _, options = root.partition("?")
    option, _, namespace = options.partition("=")
    if option not in ("", "namespace"):
        raise InvalidInput("root", root, "of a Ray say 'ray:auto', 'ray:host:6379' or 'ray:auto?namespace=name'")
    address = where.removeprefix("ray:")
    cluster = RayCluster if address.startswith(("http://", "https://")) else RayJobs
    return cluster(address if cluster is RayCluster else where, namespace or None)


def _open_local(root: str, options: str) -> StorageCluster:
    from fray.cluster.local_cluster import LocalCluster  # an agent's code, which few processes need

    match options:
        case "" | "use_isolated_env=True":
            return LocalCluster()
        case "use_isolated_env=False":
            return LocalCluster(use_processes=False)
    raise InvalidInput("root", root, "say 'local', or 'local?use_isolated_env=False' for threads")
