"""Actors that programs host themselves, found by name and called directly.

server = ActorServer(current_cluster())
server.register("inference", Model(path))
server.serve()

pool = ClusterResolver(current_cluster()).lookup("inference")
answers = pool.call().predict(prompts)

The names below are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fray.lazily import exported

if TYPE_CHECKING:
    from fray.cluster.endpoint import ActorEndpoint, ActorId
    from fray.cluster.metadata import Metadata
    from fray.rpc.context import ActorContext
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
    "Metadata",
    "Resolver",
]

__getattr__, __dir__ = exported(
    __name__,
    {
        "fray.rpc.context": ["ActorContext"],
        "fray.cluster.endpoint": ["ActorEndpoint", "ActorId"],
        "fray.rpc.future": ["ActorFuture"],
        "fray.cluster.metadata": ["Metadata"],
        "fray.rpc.pool": ["ActorPool", "BroadcastHandle"],
        "fray.rpc.resolver": ["ClusterResolver", "FixedResolver", "LocalResolver", "Resolver"],
        "fray.rpc.server": ["ActorServer"],
    },
)
