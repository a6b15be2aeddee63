"""Real clusters, one fixture for each kind, and servers of actors on them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fray.cluster import StorageCluster
from fray.rpc import ActorServer
from tests.support import actors
from tests.support.shell import Shell


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageCluster]:
    """The cluster that the tests of a module share, of the kind that its `CLUSTER` or a parameter names.

    The kinds are those of `tests.support.actors.cluster_of_kind`. A module whose cluster has settings of its own
    overrides this.
    """
    kind = getattr(request, "param", None) or request.module.CLUSTER
    with actors.cluster_of_kind(kind, tmp_path_factory.mktemp("cluster")) as opened:
        yield opened


@pytest.fixture
def new_cluster() -> Iterator[StorageCluster]:
    """A cluster in memory for one test, without agents."""
    with actors.cluster_in_memory() as opened:
        yield opened


@pytest.fixture
def serve(cluster: StorageCluster) -> Iterator[actors.Serve]:
    """Starts servers of the given actors on `cluster`, and shuts them down in the end."""
    servers: list[ActorServer] = []

    def start(**actors: Any) -> ActorServer:
        server = ActorServer(cluster)
        servers.append(server)
        for name, actor in actors.items():
            server.register(name, actor)
        server.serve_background()
        return server

    yield start
    for server in servers:
        server.shutdown()


@pytest.fixture
def empty(tmp_path: Path) -> Shell:
    """A root without an agent."""
    shell = Shell(tmp_path / "root")
    shell("init")
    return shell
