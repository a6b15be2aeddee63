"""Remote calls: methods of objects that are served at an address. A layer of its own.

Calls are authenticated in both directions. They run in the order in which each caller made them, and at most once in
each server. This package knows nothing of storage, names, jobs, or actors that move; `fray.rpc` and `fray.queue` do. Of
the project it imports only base classes of errors, bounds, the parsing of JSON, and `fray_runtime`.

    client     channels: one to each server, which keeps its calls through connections that break
    server     accepts connections, runs calls in order, keeps outcomes until they are acknowledged
    wire       values as bytes, messages, keys and seals, sockets; everything that both halves share
    hints      single words for processes that serve no calls: agents
    errors     the errors of all of these

Reading order: `client.channel`, `wire.messages`, `server.server`, `client.remote_channel`, `server.connection`,
`server.call_table`; then what `wire`, `client` and `server` say of their modules. docs/actors-transport.md says what
this layer guarantees, why, and where the time goes. layouts/actors.md has every byte of a connection.
"""

from fray_rpc.client.channel import Channel as Channel
from fray_rpc.client.channel_registry import client_id as client_id, connect as connect
from fray_rpc.client.client_calls import ClientCall as ClientCall
from fray_rpc.client.connect import Target as Target
from fray_rpc.errors import (
    BadMessage as BadMessage,
    ConnectionLost as ConnectionLost,
    NoSuchActor as NoSuchActor,
    NotAuthentic as NotAuthentic,
    RemoteError as RemoteError,
    RemoteTraceback as RemoteTraceback,
    ResultLost as ResultLost,
)
from fray_rpc.server.call_table import Journal as Journal
from fray_rpc.server.server import RpcServer as RpcServer
from fray_rpc.wire.messages import CallId as CallId
from fray_rpc.wire.session import Keyring as Keyring, RpcKey as RpcKey
