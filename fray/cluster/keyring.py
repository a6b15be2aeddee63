"""The keys of a cluster, which authenticate callers and actors to one another.

Who may read the objects under `secrets/` may call the cluster's actors.
"""

import functools

from fray.cluster.run_service import RunService
from fray_agents.rpc.wire.key_cache import KeyCache
from fray_coordinator.actors.rpc_secrets import rpc_keys
from fray_coordinator.core import Core


class ClusterKeyring(KeyCache):
    """The keys of one cluster as this process last read them; a `fray_agents.rpc.Keyring`."""

    def __init__(self, run: RunService) -> None:
        super().__init__(lambda: run(rpc_keys))
        self._run = run

    @functools.cached_property
    def encrypted(self) -> bool:
        """Whether calls are encrypted (TLS), as the cluster's settings say; they never change."""
        return self._run(_encrypt)


async def _encrypt(core: Core) -> bool:
    return core.settings.encrypt
