"""Which cluster this process works with."""

from __future__ import annotations

import os
import threading
from weakref import WeakValueDictionary

from fray.cluster.storage import StorageCluster
from fray_agents.threads import task_environ

_lock = threading.Lock()
_open: dict[str, StorageCluster] = {}

private: WeakValueDictionary[str, StorageCluster] = WeakValueDictionary()
"""By root, the open `LocalCluster`s that this process made: what runs in their threads launches there."""


def current_cluster() -> StorageCluster:
    """The cluster that FRAY_CLUSTER_SPEC names; always the same object for the same words.

    A root URL opens the cluster in that storage. "local", or nothing, is a `LocalCluster` for the whole process, which
    ends with it. In a job it is the cluster that runs the job, and what is launched becomes the job's child.
    """
    return open_cluster(task_environ().get("FRAY_CLUSTER_SPEC") or "local")


def open_cluster(root: str) -> StorageCluster:
    """The cluster under a root (`gs://`, `s3://`, `file://`, a path, `memory://`), or "local"."""
    if (made_here := private.get(root)) is not None:
        return made_here
    with _lock:
        if root not in _open:
            _open[root] = _local() if root == "local" else StorageCluster(root)
        return _open[root]


def _local() -> StorageCluster:
    from fray.cluster.local import LocalCluster  # an agent's code, which few processes need

    return LocalCluster()


os.register_at_fork(after_in_child=private.clear)
