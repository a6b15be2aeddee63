from fray.actor.create import HostedActor as HostedActor, idempotent as idempotent
from fray.actor.group import ActorGroup as ActorGroup
from fray.actor.handle import ActorHandle as ActorHandle, method as method, typed as typed
from fray.actor.running_actor import (
    ActorContext as ActorContext,
    CurrentActor as CurrentActor,
    current_actor as current_actor,
)
from fray.errors import ActorUnavailableError as ActorUnavailableError, CallInterrupted as CallInterrupted
from fray.rpc.calling import ActorMethod as ActorMethod
from fray.rpc.future import ActorFuture as ActorFuture
from fray.types import ActorConfig as ActorConfig, CheckpointConfig as CheckpointConfig
