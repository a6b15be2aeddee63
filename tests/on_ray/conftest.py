"""These tests need Ray, which `make ray` installs in an environment of its own; nothing else sees them.

All of them share one local Ray, which begins with the first that asks for it and ends with the session.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from fray.ray_backend.client import RayClient

if find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]

OBJECT_STORE_BYTES = 100 * 1024**2
"""Bytes of Ray's object store: the tests store little, and many of them run beside others."""


@pytest.fixture(scope="session")
def local_ray() -> Iterator[str]:
    """The address of a Ray of this machine alone, with four cores; this process is connected to it."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])  # `python` is Ray's
    context = ray.init(
        address="local",  # not one that runs here already
        num_cpus=4,
        include_dashboard=True,
        dashboard_host="127.0.0.1",
        _node_ip_address="127.0.0.1",
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
        namespace="tests",
    )
    yield context.address_info["gcs_address"]
    ray.shutdown()


@pytest.fixture(scope="session")
def dashboard(local_ray: str) -> str:
    """The address of that Ray's dashboard."""
    import ray

    return f"http://{ray._private.worker.get_dashboard_url()}"


@pytest.fixture(scope="module", autouse=True)
def _module_leaves_nothing_behind() -> None:
    """Nothing to check: Ray keeps processes for what comes next, and ends them with itself."""


@pytest.fixture(scope="module")
def client(local_ray: str) -> Iterator[RayClient]:
    """A client of it, whose actors end with the module."""
    client = RayClient()
    yield client
    client.shutdown()
