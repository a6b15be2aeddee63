"""The running actor servers of this process, for resolvers that find actors only here."""

from collections.abc import Mapping
from typing import Protocol

from fray_agents.rpc import Keyring
from fray_layouts.records import EndpointRecord


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
