"""The channels of this process: one for each server, shared by all threads; a fork opens new ones."""

import itertools
import os
import secrets
import threading

from fray_rpc.client.channel import Channel, LocalChannel
from fray_rpc.client.connect import Target, open_connection
from fray_rpc.client.remote_channel import RemoteChannel
from fray_rpc.server.server import abandon_servers, server_of_process
from fray_rpc.wire.session import Keyring


class _ChannelRegistry:
    """The channels, by their servers' identities and addresses; `client` identifies this process among all callers."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.client = secrets.token_hex(8)
        self.numbers = itertools.count(1)
        self.by_identity: dict[str, Channel] = {}
        self.by_address: dict[str, Channel] = {}

    def add(self, channel: RemoteChannel) -> None:
        """Share a channel with all callers of its server."""
        self.by_identity[channel.target.identity] = self.by_address[channel.target.tcp] = channel

    def find(self, target: Target) -> Channel | None:
        """The channel to the server of `target`, if there is one; for a server of this process there always is."""
        server = server_of_process(target.identity, target.tcp)
        with self.lock:
            if server is None:
                return self.by_identity.get(target.identity) if target.identity else self.by_address.get(target.tcp)
            if server.identity not in self.by_identity:
                self.by_identity[server.identity] = LocalChannel(server, self.next_client())
            return self.by_identity[server.identity]

    def next_client(self) -> str:
        return f"{self.client}.{next(self.numbers)}"


_registry = _ChannelRegistry()


def client_id() -> str:
    """The name of this process among all callers; a fork has a different one."""
    return _registry.client


def connect(target: Target, keyring: Keyring) -> Channel:
    """A channel to the server of `target`, shared with all callers of that server who hold a key of it.

    Raises:
        ConnectionLost: the server cannot be reached, or another one is at its address.
        NotAuthentic: the server does not hold the cluster's key.
    """
    registry = _registry
    known = registry.find(target)
    if known is not None and _in_common(known.keyring, keyring):
        return known
    connection, identity = open_connection(target, keyring)
    with registry.lock:
        known = registry.by_identity.get(identity)
        if known is None:
            created = RemoteChannel(
                target._replace(identity=identity), keyring, registry.next_client(), connection, _forget
            )
            registry.add(created)
            return created
    connection.close()
    return known


def _in_common(one: Keyring, other: Keyring) -> bool:
    """Whether two keyrings have a key in common; if they seem to have none, the caller asks the server."""
    return one is other or not set(one.keys()).isdisjoint(other.keys())


def _forget(channel: Channel) -> None:
    with _registry.lock:
        for index in (_registry.by_identity, _registry.by_address):
            for key in [key for key, value in index.items() if value is channel]:
                del index[key]


def _after_fork() -> None:
    """Give the child of a fork channels of its own; it serves nothing, and its parent's calls are not its own."""
    global _registry
    before, _registry = _registry, _ChannelRegistry()
    abandon_servers()
    for channel in before.by_identity.values():
        if isinstance(channel, RemoteChannel):
            channel.forked(_registry.next_client())
            _registry.add(channel)


os.register_at_fork(after_in_child=_after_fork)
