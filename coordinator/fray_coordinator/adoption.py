"""Makes a copy of a root a cluster of its own, and gives a cluster another address.

Nothing else opens a copy, so nobody sees the steps in between: `cluster.json` is written last, and an adoption that was
interrupted is done again from its beginning.
"""

from collections.abc import Callable
from functools import partial

from fray_coordinator.actors.rpc_secrets import rotate_keys
from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.protocol import cluster_identity
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import CLUSTER_KEY, AgentKeys, CoordinatorKeys, EndpointKey, MachineKeys
from fray_layouts.records import ClusterSettings

LEFT_BEHIND = (AgentKeys.area, EndpointKey.area, MachineKeys.area, CoordinatorKeys.area)
"""Prefixes of what names processes and machines of the original: they stay there, and are dropped from the copy."""


async def adopt_copy(core: Core) -> tuple[ClusterSettings, int]:
    """Make the copied root that `core` has opened a cluster of its own; (its settings, number of dropped objects).

    It has a new id and a new key of calls. Jobs that ran in the original wait, once an agent has joined, for their next
    attempt here.

    Raises:
        InvalidInput: the root is no copy.
    """
    store = core.store
    if store.address in core.settings.addresses:
        raise InvalidInput("root", store.root, "it is no copy: its cluster.json names this address")
    dropped = [row.key for prefix in LEFT_BEHIND for row in await store.list(prefix)]
    await map_concurrently(dropped, store.delete)
    await rotate_keys(core, kept=0)
    decide = partial(cluster_identity.adopted, cluster_id=core.rng.token(), address=store.address, now=core.now())
    return await _changed(core, decide), len(dropped)


async def add_address(core: Core) -> ClusterSettings:
    """Say that the cluster that `core` has opened is also at this address; its settings."""
    return await _changed(core, partial(cluster_identity.also_at, address=core.store.address))


async def _changed(core: Core, decide: Callable[[ClusterSettings], ClusterSettings | None]) -> ClusterSettings:
    changed = await core.records.change(CLUSTER_KEY, ClusterSettings, decide)
    return changed.stored.record if changed.stored is not None else core.settings
