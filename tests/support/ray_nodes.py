"""A Ray on this machine, with one node or more, which ends with the block.

Ray reads some of its variables when it is imported, so import this module before Ray.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from typing import Any

from tests.support.waiting import wait_until

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # its address is 127.0.0.1, and all of its servers listen there
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # otherwise Ray leaves one in the home directory

import ray
from ray.cluster_utils import Cluster

_STORE = {"object_store_memory": 100 * 1024**2}
"""Options for a small object store: the tests store little, and many of them run at the same time."""


@contextlib.contextmanager
def local_ray(include_dashboard: bool = False, **resources: float) -> Iterator[Any]:
    """Start a Ray whose head has four cores, and connect this process to it. Other Rays do not interfere.

    Its `proxy_address` is the address of Ray's proxy for programs outside.
    """
    directory = os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="ray-")  # where "auto" finds the newest Ray
    ports = {"dashboard_port": 0, "dashboard_agent_listen_port": 0, "ray_client_server_port": free_port()}
    head = {"num_cpus": 4, "resources": resources, "include_dashboard": include_dashboard}
    cluster = Cluster(initialize_head=True, head_node_args={**head, **ports, **_STORE})
    cluster.proxy_address = f"ray://127.0.0.1:{ports['ray_client_server_port']}"
    try:
        ray.init(address=cluster.address, namespace="tests", log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(directory, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        number: int = asked.getsockname()[1]
        return number


@contextlib.contextmanager
def another_node(cluster: Any, **resources: float) -> Iterator[Any]:
    """Add a node of two cores, until the end of the block or `lose`."""
    node = cluster.add_node(num_cpus=2, resources=resources, **_STORE)
    try:
        yield node
    finally:
        if node in cluster.worker_nodes:
            lose(cluster, node)


def lose(cluster: Any, node: Any) -> None:
    """Kill all processes of a node at once, and wait until Ray knows."""
    cluster.remove_node(node, allow_graceful=False)
    wait_until(lambda: all(known["NodeID"] != node.node_id or not known["Alive"] for known in ray.nodes()))
