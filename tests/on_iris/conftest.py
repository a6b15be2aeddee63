"""These tests need Iris, which `make iris` installs in an environment of its own; nothing else sees them.

All of them share one local Iris: the package's own controller, whose workers are processes of this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

if find_spec("iris") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def controller() -> Iterator[str]:
    """The address of a controller with up to four workers."""
    from iris.cluster.local_cluster import LocalCluster, make_local_cluster_config

    cluster = LocalCluster(make_local_cluster_config(4))
    try:
        yield cluster.start()
    finally:
        cluster.close()
