"""See `fray.actor`; made by `make aliases`."""

from fray.actor import (
    ActorConfig,
    ActorContext,
    ActorFuture,
    ActorGroup,
    ActorHandle,
    ActorMethod,
    ActorUnavailableError,
    CallInterrupted,
    CheckpointConfig,
    CurrentActor,
    HostedActor,
    current_actor,
    idempotent,
    method,
    typed,
)

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
