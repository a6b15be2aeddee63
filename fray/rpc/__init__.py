"""Actors that programs host themselves, found by name and called directly.

server = ActorServer(current_cluster())
server.register("inference", Model(path))
server.serve()

pool = ClusterResolver(current_cluster()).lookup("inference")
answers = pool.call().predict(prompts)

The names below are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fray.rpc.context import ActorContext
    from fray.rpc.endpoint import ActorEndpoint, ActorId
    from fray.rpc.future import ActorFuture
    from fray.rpc.pool import ActorPool, BroadcastHandle
    from fray.rpc.resolver import ClusterResolver, FixedResolver, LocalResolver, Resolver
    from fray.rpc.server import ActorServer

__all__ = [
    "ActorContext",
    "ActorEndpoint",
    "ActorFuture",
    "ActorId",
    "ActorPool",
    "ActorServer",
    "BroadcastHandle",
    "ClusterResolver",
    "FixedResolver",
    "LocalResolver",
    "Resolver",
]

_HOMES = {
    "ActorContext": "context",
    "ActorEndpoint": "endpoint",
    "ActorFuture": "future",
    "ActorId": "endpoint",
    "ActorPool": "pool",
    "ActorServer": "server",
    "BroadcastHandle": "pool",
    "ClusterResolver": "resolver",
    "FixedResolver": "resolver",
    "LocalResolver": "resolver",
    "Resolver": "resolver",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fray.rpc' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fray.rpc.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
