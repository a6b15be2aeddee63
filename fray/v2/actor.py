"""See `fray.actor`."""

from fray.actor import (
    ActorConfig,
    ActorFuture,
    ActorGroup,
    ActorHandle,
    ActorMethod,
    ActorUnavailableError,
    HostedActor,
    current_actor,
)

__all__ = [
    "ActorConfig",
    "ActorFuture",
    "ActorGroup",
    "ActorHandle",
    "ActorMethod",
    "ActorUnavailableError",
    "HostedActor",
    "current_actor",
]
