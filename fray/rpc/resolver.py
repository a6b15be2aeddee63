"""The resolvers, which find the actors of a name in a cluster's records, at known addresses, or in this process."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fray.cluster.actor_metadata import ActorEndpoint, ActorId
from fray.cluster.api import Cluster
from fray.cluster.current import open_cluster, opened_clusters, storage_cluster
from fray.rpc.pool import Resolver
from fray.types import JobId, Namespace
from fray_coordinator.actors.naming import EndpointLookup
from fray_coordinator.core import Core
from fray_layouts.errors import InvalidInput
from fray_layouts.records import EndpointRecord
from fray_layouts.spec_parsing import check_name
from fray_rpc import Channel, Keyring, Target, connect
from fray_rpc.errors import ConnectionLost, NotAuthentic


class RunningServer(Protocol):
    """A running `ActorServer`."""

    @property
    def address(self) -> str: ...

    @property
    def keyring(self) -> Keyring: ...

    @property
    def records(self) -> Mapping[str, EndpointRecord]: ...


running_servers: set[RunningServer] = set()


def server_at(address: str) -> RunningServer | None:
    return next((server for server in running_servers.copy() if server.address == address), None)


class ClusterResolver(Resolver):
    """Finds the actors that are announced in a cluster. It pickles as the cluster's root and the namespace.

    Args:
        namespace: the namespace in which names are looked up; by default the cluster object's current one.
    """

    def __init__(self, cluster: Cluster, namespace: str | None = None) -> None:
        self._cluster = storage_cluster(cluster)
        self._namespace = namespace or cluster.namespace
        self._lookups: dict[str, EndpointLookup] = {}

    def find(self, name: str) -> list[ActorEndpoint]:
        check_name("name", name)
        return [ActorEndpoint.of(record) for record in self._cluster.run(functools.partial(self._poll, name))]

    def connect(self, endpoint: ActorEndpoint) -> Channel:
        return connect(endpoint.target, self._cluster.keyring)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._cluster.root, self._namespace)

    async def _poll(self, name: str, core: Core) -> Any:
        lookup = self._lookups.setdefault(name, EndpointLookup(core, self._namespace, name))
        lookup.core = core  # it is another one after a fork, or if the cluster was closed
        return await lookup.poll()


class FixedResolver(Resolver):
    """Finds actors at addresses that the caller knows, without a request to the storage. Their servers must be running.

    Args:
        addresses: the "host:port" of a server, or several, for each name; or one "host:port" for all names.
        cluster: the cluster whose key authenticates the calls. By default it is that of the server in this process with
            the address; if there is none, all clusters that this process has opened are tried.

    Raises:
        InvalidInput: an address is not a "host:port". Calls raise it if the server belongs to another cluster.
    """

    patience = 5.0

    def __init__(self, addresses: str | Mapping[str, str | Sequence[str]], cluster: Cluster | None = None) -> None:
        self._addresses = addresses
        self._cluster = storage_cluster(cluster) if cluster is not None else None
        each = [addresses] if isinstance(addresses, str) else list(addresses.values())
        for address in (address for some in each for address in _listed(some)):
            if not address.rpartition(":")[0] or not address.rpartition(":")[2].isdigit():
                raise InvalidInput("addresses", address, 'give "host:port"')

    def find(self, name: str) -> list[ActorEndpoint]:
        known = self._addresses
        return [_fixed(name, address) for address in _listed(known if isinstance(known, str) else known.get(name, ()))]

    def connect(self, endpoint: ActorEndpoint) -> Channel:
        refused: NotAuthentic | None = None
        for keyring in self._keyrings(endpoint.address):
            try:
                return connect(endpoint.target, keyring)
            except NotAuthentic as error:
                refused = error
        asked = self._cluster.root if self._cluster is not None else "any cluster that this process has open"
        remedy = f"the server there does not belong to {asked}; name its cluster: FixedResolver(addresses, cluster=...)"
        raise InvalidInput("addresses", endpoint.address, remedy) from refused

    def _keyrings(self, address: str) -> Sequence[Keyring]:
        if self._cluster is not None:
            return [self._cluster.keyring]
        here = server_at(address)
        return [here.keyring] if here is not None else [cluster.keyring for cluster in opened_clusters()]


class LocalResolver(Resolver):
    """Finds the actors that servers in this process have or, with a cluster, all that are announced in the cluster.

    Args:
        cluster: None finds the servers of this process, whatever their cluster and namespace.
    """

    patience = 5.0

    def __init__(self, cluster: Cluster | None = None) -> None:
        self._in_cluster = ClusterResolver(cluster) if cluster is not None else None

    def find(self, name: str) -> list[ActorEndpoint]:
        if self._in_cluster is not None:
            return self._in_cluster.find(name)
        records = [server.records.get(name) for server in running_servers.copy()]
        return [ActorEndpoint.of(record) for record in records if record is not None]

    def connect(self, endpoint: ActorEndpoint) -> Channel:
        if self._in_cluster is not None:
            return self._in_cluster.connect(endpoint)
        server = server_at(endpoint.address)
        if server is None:
            raise ConnectionLost(f"the server at {endpoint.address} has stopped serving", started=False)
        return connect(endpoint.target, server.keyring)


def _reopened(root: str, namespace: str) -> ClusterResolver:
    return ClusterResolver(open_cluster(root), namespace)


def _listed(addresses: str | Sequence[str]) -> Sequence[str]:
    return [addresses] if isinstance(addresses, str) else addresses


def _fixed(name: str, address: str) -> ActorEndpoint:
    return ActorEndpoint(ActorId(address), name, address, JobId(""), Namespace(""), {}, Target(name, address))
