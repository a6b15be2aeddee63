"""The current cluster of a thread or coroutine, and opening clusters by their roots."""

import os
import threading
from contextvars import ContextVar

from fray.cluster.registry import local_clusters
from fray.cluster.storage import StorageCluster
from fray_agents.tasks.current_task import task_environ
from fray_layouts.errors import InvalidInput

_lock = threading.Lock()
_clusters: dict[str, StorageCluster] = {}

_chosen: ContextVar[StorageCluster | None] = ContextVar("fray_cluster", default=None)


def set_current_cluster(cluster: StorageCluster | None) -> None:
    """Make `cluster` the current one of this thread or coroutine from now on.

    Args:
        cluster: what `current_cluster` returns; None makes it the environment's again.
    """
    _chosen.set(cluster)


def current_cluster() -> StorageCluster:
    """The cluster that `set_current_cluster` chose, else the one that FRAY_CLUSTER_SPEC names.

    In a job FRAY_CLUSTER_SPEC names the cluster that runs the job, and what is launched there becomes the job's child.
    Without it, or with "local", it is a `LocalCluster` that this process shares, and that ends with it.

    Raises:
        InvalidInput: FRAY_CLUSTER_SPEC names nothing that `open_cluster` can open.
    """
    return _chosen.get() or environment_cluster()


def environment_cluster() -> StorageCluster:
    """The cluster that FRAY_CLUSTER_SPEC names, or a `LocalCluster` for the whole process if it names none.

    What a job in a thread of this process launches there are threads too.
    """
    environ = task_environ()
    cluster = open_cluster(environ.get("FRAY_CLUSTER_SPEC") or "local")
    return cluster if environ is os.environ else cluster.threads


def open_cluster(root: str) -> StorageCluster:
    """The cluster under a root; always the same object for the same text. `create_cluster` is the same function.

    Nothing is read or written until the cluster is used.

    Args:
        root: `gs://bucket/prefix`, `s3://bucket/prefix`, `file:///path`, a path, `memory://name`, or "local": a
            private cluster whose jobs are processes of this machine. With "local?use_isolated_env=False" they are
            threads of this process.

    Raises:
        InvalidInput: the root is a cluster of Ray, or a local one with another option.
    """
    kind, _, options = root.partition("?")
    if kind == "ray":
        raise InvalidInput("root", root, "Fray does not run on Ray yet; name a root in storage, or 'local'")
    if (local := local_clusters.get(root)) is not None:
        return local
    with _lock:
        if root not in _clusters:
            _clusters[root] = _open_local(root, options) if kind == "local" else StorageCluster(root)
        return _clusters[root]


create_cluster = open_cluster


def opened_clusters() -> list[StorageCluster]:
    """The current cluster, and the others that `open_cluster` and `LocalCluster` have opened in this process.

    If the current one would be a private cluster that was not made yet, it is left out: no actor could be there.
    """
    spec = task_environ().get("FRAY_CLUSTER_SPEC") or "local"
    is_private = _chosen.get() is None and spec.partition("?")[0] == "local"
    with _lock:
        known = [*_clusters.values(), *local_clusters.values()]
    return list(dict.fromkeys(known if is_private else [current_cluster(), *known]))


def _open_local(root: str, options: str) -> StorageCluster:
    from fray.cluster.local_cluster import LocalCluster  # an agent's code, which few processes need

    match options:
        case "" | "use_isolated_env=True":
            return LocalCluster()
        case "use_isolated_env=False":
            return LocalCluster(use_processes=False)
    raise InvalidInput("root", root, "say 'local', or 'local?use_isolated_env=False' for threads")
