"""The private clusters that this process has created, so that code in their threads finds them and launches there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from fray.cluster.storage import StorageCluster

local_clusters: WeakValueDictionary[str, StorageCluster] = WeakValueDictionary()
"""The open `LocalCluster`s by root. Empty in a forked child, because their agents run in the parent."""

os.register_at_fork(after_in_child=local_clusters.clear)
