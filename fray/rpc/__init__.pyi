from fray.cluster.actor_metadata import ActorEndpoint as ActorEndpoint, ActorId as ActorId, Metadata as Metadata
from fray.rpc.actor_server import ActorServer as ActorServer
from fray.rpc.context import ActorContext as ActorContext
from fray.rpc.future import ActorFuture as ActorFuture
from fray.rpc.pool import ActorPool as ActorPool, BroadcastHandle as BroadcastHandle, Resolver as Resolver
from fray.rpc.resolver import (
    ClusterResolver as ClusterResolver,
    FixedResolver as FixedResolver,
    LocalResolver as LocalResolver,
)
