"""Resolvers with real connections, in one process: which actors they find, and what that costs."""

import time
import uuid

import pytest

from fray.cluster import ClusterResolver, FixedResolver, LocalResolver, StorageCluster, open_cluster
from fray.errors import ActorNotFoundError
from fray.rpc import ActorServer, resolver
from fray_layouts.errors import InvalidInput
from tests.support import actors
from tests.support.actors import Serve


@pytest.fixture
def cluster(new_cluster: StorageCluster) -> StorageCluster:
    """Each test has one of its own."""
    return new_cluster


def test_the_cost_of_a_lookup_does_not_grow_with_the_number_of_actors(cluster: StorageCluster, serve: Serve) -> None:
    """Five servers with a hundred actors each: every lookup of a name is one listing and one read."""
    resolver = ClusterResolver(cluster)
    for number in range(5):
        serve(**{f"actor-{number}-{i}": actors.Counter(number * 100 + i) for i in range(100)})
        before = cluster.requests()
        assert resolver.lookup(f"actor-{number}-99").add(0) == number * 100 + 99
        spent = cluster.requests() - before
        assert (spent.writes, spent.lists, spent.reads) == (0, 1, 1)
    assert [resolver.lookup(f"actor-{n}-{i}").add(0) for n in range(5) for i in range(100)] == list(range(500))


def test_a_lookup_reads_only_changed_endpoints(cluster: StorageCluster, serve: Serve) -> None:
    for _ in range(4):
        serve(counter=actors.Counter())
    pool = ClusterResolver(cluster).lookup("counter")
    assert pool.size == 4
    serve(counter=actors.Counter())
    before = cluster.requests()
    assert pool.size == 5
    spent = cluster.requests() - before
    assert (spent.lists, spent.reads) == (1, 1)


def test_a_server_that_shuts_down_is_no_longer_found_and_calls_go_to_the_others(
    cluster: StorageCluster, serve: Serve
) -> None:
    first, _ = serve(counter=actors.Counter(1)), serve(counter=actors.Counter(2))
    pool = ClusterResolver(cluster).lookup("counter")
    assert sorted(pool.add(0) for _ in range(2)) == [1, 2]
    first.shutdown()
    assert [pool.add(0) for _ in range(4)] == [2] * 4
    assert pool.size == 1
    first.shutdown()


def test_names_come_and_go_while_a_server_serves(cluster: StorageCluster, serve: Serve) -> None:
    server = serve()
    server.register("counter", actors.Counter(), metadata={"model": "small"})
    pool = ClusterResolver(cluster).lookup("counter")
    [endpoint] = pool.endpoints
    assert (endpoint.name, endpoint.address, endpoint.metadata) == ("counter", server.address, {"model": "small"})
    assert endpoint.namespace == cluster.namespace
    with pytest.raises(InvalidInput, match="has an actor of that name"):
        server.register("counter", actors.Counter())
    with pytest.raises(InvalidInput, match="name"):
        server.register("../counter", actors.Counter())
    with pytest.raises(InvalidInput, match="metadata"):
        server.register("other", actors.Counter(), metadata={"model": object()})
    server.unregister("counter")
    assert pool.size == 0
    with pytest.raises(InvalidInput, match="none"):
        server.unregister("counter")


def test_nothing_is_announced_before_it_is_served(cluster: StorageCluster) -> None:
    server = ActorServer(cluster)
    server.register("counter", actors.Counter())
    pool = ClusterResolver(cluster).lookup("counter")
    assert pool.size == 0
    server.serve_background()
    assert pool.size == 1
    server.shutdown()


def test_keys_that_nobody_has_cost_the_storage_one_read_a_second(cluster: StorageCluster) -> None:
    ring = cluster.keyring
    ring.keys()
    before, began = cluster.requests(), time.monotonic()
    for _ in range(100):
        ring.keys(fresh=True)
    assert (cluster.requests() - before).reads <= 1 + time.monotonic() - began


def test_resolvers_that_ask_no_storage(cluster: StorageCluster, serve: Serve) -> None:
    first, second = serve(counter=actors.Counter(1)), serve(counter=actors.Counter(2))
    both = FixedResolver({"counter": [first.address, second.address]}).lookup("counter")
    assert sorted(both.add(0) for _ in range(2)) == [1, 2]
    one = FixedResolver(second.address, cluster)
    assert one.lookup("counter").add(0) == 2
    assert FixedResolver({"counter": first.address}).lookup("other").size == 0
    with pytest.raises(InvalidInput, match="host:port"):
        FixedResolver("localhost")
    here = LocalResolver().wait_for_actor("counter")
    assert sorted(here.add(0) for _ in range(2)) == [1, 2]
    assert LocalResolver(cluster).lookup("counter").size == 2


def test_a_fixed_address_of_another_cluster_says_so_at_once(cluster: StorageCluster) -> None:
    with StorageCluster(f"memory://{uuid.uuid4()}") as other:
        server = ActorServer(other)
        server.register("counter", actors.Counter())
        server.serve_background()
        theirs = FixedResolver(server.address, cluster).lookup("counter")
        for call in (theirs.add, theirs.add.remote(1).result, theirs.broadcast().add):
            with pytest.raises(InvalidInput, match=rf"{server.address}.*does not belong to {cluster.root}.*cluster="):
                call(1)
        server.shutdown()


def test_a_fixed_address_is_looked_for_in_every_open_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = [open_cluster(f"memory://{uuid.uuid4()}") for _ in range(2)]
    servers = [ActorServer(cluster) for cluster in clusters]
    for number, server in enumerate(servers):
        server.register("counter", actors.Counter(number))
        server.serve_background()
    monkeypatch.setattr(resolver, "running_servers", set())  # as from another process of the clusters' owner
    assert [FixedResolver(server.address).lookup("counter").add(10) for server in servers] == [10, 11]
    for server in servers:
        server.shutdown()


def test_announced_actors_are_listed_by_name(cluster: StorageCluster, serve: Serve) -> None:
    serve(inference_0=actors.Counter(), inference_1=actors.Counter(), other=actors.Counter())
    serve(inference_1=actors.Counter())
    assert [one.name for one in cluster.metadata.list_actors("inference_")] == ["inference_0", *["inference_1"] * 2]
    assert len(cluster.metadata.list_actors()) == 4
    assert [one.name for one in cluster.metadata.lookup_all("inference_1")] == ["inference_1"] * 2
    found = cluster.metadata.lookup("other")
    assert found is not None
    handle = ClusterResolver(cluster).wait_for_actor("other")
    assert (handle.actor_id, handle.address) == (found.actor_id, found.address)
    assert cluster.metadata.lookup("nobody") is None
    with pytest.raises(ActorNotFoundError, match="nobody"):
        _ = ClusterResolver(cluster).lookup("nobody").address


def test_a_fixed_address_where_nobody_serves(cluster: StorageCluster, serve: Serve) -> None:
    server = serve(counter=actors.Counter())
    resolver = FixedResolver(server.address, cluster)
    resolver.patience = 0.1
    with pytest.raises(ActorNotFoundError, match="other"):
        resolver.lookup("other").add(1)
    server.shutdown()
    with pytest.raises(ActorNotFoundError, match="counter"):
        resolver.lookup("counter").add(1)


def test_drivers_do_not_see_each_other_s_actors(cluster: StorageCluster, serve: Serve) -> None:
    serve(counter=actors.Counter())
    other = StorageCluster(cluster.root)
    assert ClusterResolver(other).lookup("counter").size == 0
    assert ClusterResolver(StorageCluster(cluster.root, namespace=cluster.namespace)).lookup("counter").size == 1
