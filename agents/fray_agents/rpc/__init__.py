"""Calling a method of an object that is served at an address.

Authenticated both ways, in order for each caller, at most once in each server. Knows nothing of storage, names or
jobs. How it works and what it costs: docs/actors-transport.md.
"""

from __future__ import annotations

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
from fray_agents.rpc.server.call_table import CallId, Journal
from fray_agents.rpc.server.server import RpcServer
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
