"""Calling a method of an object that is served at an address.

Authenticated both ways, in order for each caller, at most once in each server. Knows nothing of storage, names or
jobs. How it works and what it costs: docs/actors-transport.md.
"""

from __future__ import annotations

from fray_agents.rpc.caller import Channel
from fray_agents.rpc.calls import CallId, Journal
from fray_agents.rpc.dial import Target
from fray_agents.rpc.errors import (
    BadMessage,
    ConnectionLost,
    NoSuchActor,
    NotAuthentic,
    RemoteError,
    RemoteTraceback,
    ResultLost,
)
from fray_agents.rpc.pending import Call
from fray_agents.rpc.registry import client_id, connect
from fray_agents.rpc.server import Server
from fray_agents.rpc.session import Keyring, RpcKey

__all__ = [
    "BadMessage",
    "Call",
    "CallId",
    "Channel",
    "ConnectionLost",
    "Journal",
    "Keyring",
    "NoSuchActor",
    "NotAuthentic",
    "RemoteError",
    "RemoteTraceback",
    "ResultLost",
    "RpcKey",
    "Server",
    "Target",
    "client_id",
    "connect",
]
