"""Which cluster this process works with."""

from __future__ import annotations

import threading
from contextvars import ContextVar

from fray.cluster.registry import local_clusters
from fray.cluster.storage import StorageCluster
from fray_agents.tasks.thread_task import task_environ
from fray_layouts.errors import InvalidInput

_lock = threading.Lock()
_open: dict[str, StorageCluster] = {}

_chosen: ContextVar[StorageCluster | None] = ContextVar("fray_cluster", default=None)


def set_current_cluster(cluster: StorageCluster | None) -> None:
    """Make `cluster` the current one of this thread or coroutine from now on; None takes that back."""
    _chosen.set(cluster)


def current_cluster() -> StorageCluster:
    """The cluster that `set_current_cluster` has chosen, else that of the environment."""
    return _chosen.get() or environment_cluster()


def environment_cluster() -> StorageCluster:
    """The cluster that FRAY_CLUSTER_SPEC names; always the same object for the same words.

    A root URL opens the cluster in that storage. "local", or nothing, is a `LocalCluster` for the whole process, which
    ends with it. In a job it is the cluster that runs the job, and what is launched becomes the job's child.
    """
    return open_cluster(task_environ().get("FRAY_CLUSTER_SPEC") or "local")


def open_cluster(root: str) -> StorageCluster:
    """The cluster under a root (`gs://`, `s3://`, `file://`, a path, `memory://`), or "local".

    "local?use_isolated_env=False" is a local one whose jobs are threads; with True, and by default, they are processes.

    Raises:
        InvalidInput: it is a cluster of Ray, or a local one with another option.
    """
    kind, _, options = root.partition("?")
    if kind == "ray":
        raise InvalidInput("root", root, "Fray does not run on Ray yet; name a root in storage, or 'local'")
    if (made_here := local_clusters.get(root)) is not None:
        return made_here
    with _lock:
        if root not in _open:
            _open[root] = _local(root, options) if kind == "local" else StorageCluster(root)
        return _open[root]


create_cluster = open_cluster


def opened_clusters() -> list[StorageCluster]:
    """The current cluster, and the others that `open_cluster` and `LocalCluster` have opened in this process.

    A private one is not made for that: nobody could be found there.
    """
    spec = task_environ().get("FRAY_CLUSTER_SPEC") or "local"
    is_private = _chosen.get() is None and spec.partition("?")[0] == "local"
    with _lock:
        known = [*_open.values(), *local_clusters.values()]
    return list(dict.fromkeys(known if is_private else [current_cluster(), *known]))


def _local(root: str, options: str) -> StorageCluster:
    from fray.cluster.local_cluster import LocalCluster  # an agent's code, which few processes need

    match options:
        case "" | "use_isolated_env=True":
            return LocalCluster()
        case "use_isolated_env=False":
            return LocalCluster(use_processes=False)
    raise InvalidInput("root", root, "say 'local', or 'local?use_isolated_env=False' for threads")
