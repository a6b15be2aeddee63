"""The task of an actor on Iris: it creates the user's object and serves calls with Iris's own server."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fray.actor.returned import returned, without_generator
from fray.actor.running_actor import CurrentActor, set_current_actor
from fray.backends.iris.actors import IrisActorAddress, IrisActorHandle
from fray.backends.iris.cluster import IrisCluster
from fray.backends.iris.connection import AUTO
from fray.backends.iris.replica_main import fail_for_good
from fray.sync import LoopThread

PORT = "actor"
"""The name of the port that Iris gives an actor's task."""


class IrisActorHost:
    """Runs the methods of the user's object for Iris's server, which must not call it in an event loop's thread."""

    def __init__(self, instance: Any) -> None:
        self._instance = instance
        self._loop = LoopThread()

    def call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a call. Iris passes on to the caller what the method raises."""
        value = returned(self._instance, method, args, kwargs, self._loop)
        return without_generator(value, ", which Iris does not support; return a list")


def serve_actor(cls: type, args: Sequence[Any], kwargs: Mapping[str, Any], address: IrisActorAddress) -> None:
    """Serve one actor until its task is asked to end, or the actor ends itself.

    Args:
        address: the actor's address without its job, which is the one that runs this.

    Raises:
        Exception: what the actor's `__init__` raised, or what the actor failed with.
    """
    from iris.actor.server import ActorServer
    from iris.client.client import iris_ctx
    from iris.cluster.client.job_info import get_job_info

    context, mine = iris_ctx(), get_job_info()
    assert mine is not None, "only a task of an Iris job runs this"
    own = replace(address, root=AUTO, job=str(context.job_id))
    actor = CurrentActor(IrisActorHandle(IrisCluster(), own), own.index, own.name)
    set_current_actor(actor, owns_process=True)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: actor.shutdown_event.set())
    host = IrisActorHost(_made(cls, args, kwargs))
    server = ActorServer(port=context.get_port(PORT), max_concurrency=own.max_concurrency)
    server.register(own.endpoint, host)
    port = server.serve_background()
    with context.registry.registered(own.endpoint, f"http://{mine.advertise_host}:{port}"):
        actor.shutdown_event.wait()
    server.stop()
    if actor.failure is not None:
        fail_for_good(actor.failure)
        raise actor.failure


def _made(cls: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        return cls(*args, **kwargs)
    except Exception as error:
        fail_for_good(error)
        raise
