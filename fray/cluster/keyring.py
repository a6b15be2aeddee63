"""The keys of a cluster, with which calls and replies are signed: who may read its `secrets/` may call its actors."""

from __future__ import annotations

import functools

from fray.cluster.storage import StorageCluster
from fray_agents.rpc.wire.key_cache import KeyCache
from fray_coordinator.actors.rpc_secrets import rpc_keys
from fray_coordinator.core import Core


class ClusterKeyring(KeyCache):
    """See `fray_agents.rpc.Keyring`."""

    def __init__(self, cluster: StorageCluster) -> None:
        super().__init__(lambda: cluster.run(rpc_keys))
        self._cluster = cluster

    @functools.cached_property
    def encrypted(self) -> bool:
        """Whether the cluster's settings say so; they never change."""
        return self._cluster.run(_encrypted)


@functools.cache
def keyring_of(cluster: StorageCluster) -> ClusterKeyring:
    """The one keyring that all servers and resolvers of a cluster object share."""
    return ClusterKeyring(cluster)


async def _encrypted(core: Core) -> bool:
    return core.settings.encrypt
