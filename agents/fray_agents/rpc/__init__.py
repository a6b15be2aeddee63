"""Remote calls: methods of objects that are served at an address. A layer of its own.

Calls are authenticated in both directions, run in the order in which each caller made them, and at most once in each
server. This package knows nothing of storage, names, jobs or actors that move: `fray.rpc` does, and `fray.queue`. It
imports nothing of the project but the base classes of errors, and how JSON is read.

    client     channels: one to each server, which keeps its calls through connections that break
    server     accepts connections, runs calls in order, keeps outcomes until they are known
    wire       values as bytes, messages, keys and seals, sockets; whatever both halves share
    hints      single words for processes that serve no calls: agents
    errors     of all of these

Reading order: `client.channel`, `wire.messages`, `server.server`, `client.remote_channel`, `server.connection`,
`server.call_table`; then the reading orders of `wire`, `client` and `server`. What is promised, why it is so, and where
the time goes: docs/actors-transport.md. Every byte of a connection: layouts/actors.md.
"""

from fray_agents.rpc.client.channel import Channel
from fray_agents.rpc.client.channel_registry import client_id, connect
from fray_agents.rpc.client.client_calls import ClientCall
from fray_agents.rpc.client.connect import Target
from fray_agents.rpc.errors import (
    BadMessage,
    ConnectionLost,
    NoSuchActor,
    NotAuthentic,
    RemoteError,
    RemoteTraceback,
    ResultLost,
)
from fray_agents.rpc.server.call_table import Journal
from fray_agents.rpc.server.server import RpcServer
from fray_agents.rpc.wire.messages import CallId
from fray_agents.rpc.wire.session import Keyring, RpcKey

__all__ = [
    "BadMessage",
    "CallId",
    "Channel",
    "ClientCall",
    "ConnectionLost",
    "Journal",
    "Keyring",
    "NoSuchActor",
    "NotAuthentic",
    "RemoteError",
    "RemoteTraceback",
    "ResultLost",
    "RpcKey",
    "RpcServer",
    "Target",
    "client_id",
    "connect",
]
