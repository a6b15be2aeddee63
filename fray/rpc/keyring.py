"""The keys of a cluster, with which calls and replies are signed: who may read its `secrets/` may call its actors."""

from __future__ import annotations

import functools
import threading
import time

from fray.cluster import StorageCluster
from fray_agents.rpc import RpcKey
from fray_coordinator.keys import rpc_keys

PAUSE = 1.0
"""Seconds between two reads for keys that are not known, so that made-up key ids cost the bucket nothing."""


class ClusterKeyring:
    """See `fray_agents.rpc.Keyring`."""

    def __init__(self, cluster: StorageCluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._keys: list[RpcKey] = []
        self._read_at = 0.0

    def keys(self, fresh: bool = False) -> list[RpcKey]:
        """The accepted keys, newest first; read when first asked for, and again if they shall be `fresh`."""
        with self._lock:
            if not self._keys or (fresh and time.monotonic() - self._read_at >= PAUSE):
                self._keys = [RpcKey(name, secret) for name, secret in self._cluster.run(rpc_keys)]
                self._read_at = time.monotonic()
            return self._keys


@functools.cache
def keyring_of(cluster: StorageCluster) -> ClusterKeyring:
    """The one keyring that all servers and resolvers of a cluster object share."""
    return ClusterKeyring(cluster)
