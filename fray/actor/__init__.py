"""Actors: objects that live in jobs of their own and are called from anywhere in their namespace.

counter = client.create_actor(Counter, 10, name="counter")
counter.add(1)                        # call and wait
future = counter.add.remote(1)        # call; future.result() waits
for item in counter.count.stream():   # what a generator yields, as it comes

The names below are imported when they are first used: an actor's process imports only what it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fray.actor.config import idempotent
    from fray.actor.current import CurrentActor, current_actor
    from fray.actor.group import ActorGroup
    from fray.actor.handle import ActorHandle, ActorMethod
    from fray.actor.hosting import HostedActor
    from fray.errors import ActorUnavailableError, CallInterrupted
    from fray.rpc.future import ActorFuture
    from fray.types import ActorConfig, CheckpointConfig

_HOMES = {
    "ActorConfig": "fray.types",
    "ActorFuture": "fray.rpc.future",
    "ActorGroup": "fray.actor.group",
    "ActorHandle": "fray.actor.handle",
    "ActorMethod": "fray.actor.handle",
    "ActorUnavailableError": "fray.errors",
    "CallInterrupted": "fray.errors",
    "CheckpointConfig": "fray.types",
    "CurrentActor": "fray.actor.current",
    "HostedActor": "fray.actor.hosting",
    "current_actor": "fray.actor.current",
    "idempotent": "fray.actor.config",
}

__all__ = [
    "ActorConfig",
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
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fray.actor' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
