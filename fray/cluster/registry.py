"""The private clusters that this process has made: what runs in their threads finds them here, and launches there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from fray.cluster.storage import StorageCluster

local_clusters: WeakValueDictionary[str, StorageCluster] = WeakValueDictionary()
"""By root, the open `LocalCluster`s; in a forked child none, for their agents run in the parent."""

os.register_at_fork(after_in_child=local_clusters.clear)
