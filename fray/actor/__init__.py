"""Actors: objects that live in jobs of their own and are called from anywhere in their namespace.

counter = client.create_actor(Counter, 10, name="counter")
counter.add(1)                        # call and wait
future = counter.add.remote(1)        # call; future.result() waits
for item in counter.count.stream():   # what a generator yields, as it comes

The names below are imported when they are first used: an actor's process imports only what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fray.lazily import exported

if TYPE_CHECKING:
    from fray.actor.config import idempotent
    from fray.actor.current import ActorContext, CurrentActor, current_actor
    from fray.actor.group import ActorGroup
    from fray.actor.handle import ActorHandle, ActorMethod, method, typed
    from fray.actor.hosting import HostedActor
    from fray.errors import ActorUnavailableError, CallInterrupted
    from fray.rpc.future import ActorFuture
    from fray.types import ActorConfig, CheckpointConfig

__all__ = [
    "ActorConfig",
    "ActorContext",
    "ActorFuture",
    "ActorGroup",
    "ActorHandle",
    "ActorMethod",
    "ActorUnavailableError",
    "CallInterrupted",
    "CheckpointConfig",
    "CurrentActor",
    "HostedActor",
    "current_actor",
    "idempotent",
    "method",
    "typed",
]

__getattr__, __dir__ = exported(
    __name__,
    {
        "fray.actor.config": ["idempotent"],
        "fray.actor.current": ["ActorContext", "CurrentActor", "current_actor"],
        "fray.actor.group": ["ActorGroup"],
        "fray.actor.handle": ["ActorHandle", "ActorMethod", "method", "typed"],
        "fray.actor.hosting": ["HostedActor"],
        "fray.errors": ["ActorUnavailableError", "CallInterrupted"],
        "fray.rpc.future": ["ActorFuture"],
        "fray.types": ["ActorConfig", "CheckpointConfig"],
    },
)
