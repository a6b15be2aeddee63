"""These tests need Ray, which `make ray` installs in an environment of its own; nothing else sees them.

All of them share one local Ray, which begins with the first that asks for it and ends with the session.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from fray.backends.ray.client import RayClient

if find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from tests.support import ray_nodes  # before a test imports Ray


@pytest.fixture(scope="session")
def nodes() -> Iterator[Any]:
    """A Ray of this machine alone, to which this process is connected."""
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])  # `python` is Ray's
    with ray_nodes.local_ray(include_dashboard=True) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def local_ray(nodes: Any) -> str:
    """The address of that Ray."""
    address: str = nodes.address
    return address


@pytest.fixture(scope="session")
def dashboard(nodes: Any) -> str:
    """The address of its dashboard."""
    return f"http://{nodes.webui_url}"


@pytest.fixture(scope="module", autouse=True)
def _module_leaves_nothing_behind() -> None:
    """Check nothing: Ray keeps processes for later tests, and ends them with itself."""


@pytest.fixture(scope="module")
def client(local_ray: str) -> Iterator[RayClient]:
    """A client of this Ray, whose actors end with the module."""
    client = RayClient()
    yield client
    client.shutdown()
