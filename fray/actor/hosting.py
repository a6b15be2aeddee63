"""Serving an actor: what its job runs, and `host_actor`."""

from __future__ import annotations

import contextvars
import logging
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fray.actor.address import Address
from fray.actor.config import told
from fray.actor.current import CurrentActor, settle
from fray.actor.durable import Durable, restore
from fray.actor.handle import ActorHandle
from fray.cluster.current import current_cluster
from fray.cluster.here import Here, here
from fray.cluster.launch import launcher
from fray.rpc.server import ActorServer
from fray.types import ActorConfig
from fray_agents.threads import on_stop, task_environ
from fray_coordinator.errors import StoreError
from fray_coordinator.protocol.drivers import ATTEMPT

if TYPE_CHECKING:
    from fray.cluster.storage import StorageCluster

log = logging.getLogger("fray")

T = TypeVar("T")

GRACE = 10.0
"""Seconds between the wish that an actor end and its being killed."""

INCARNATION = "FRAY_ACTOR_INCARNATION"
"""Environment variable of an actor's job: of the name that was taken for it."""

_FLUSH = GRACE - 1.0
_TRY_AGAIN = 75
"""Exit code of a process that may do better the next time (EX_TEMPFAIL)."""

_TERMINATED = 128 + 15
"""Exit code of a process that SIGTERM ended."""


def run(cls: type, args: Sequence[Any], kwargs: Mapping[str, Any], name: str, config: ActorConfig) -> None:
    """Serve one actor until its job is asked to end, or the actor ends itself.

    Raises:
        SystemExit: the job was asked to end, or the storage did not answer.
        Exception: what its `__init__` raised, or what it failed with.
    """
    cluster, mine = current_cluster(), here()
    assert mine is not None, "only an actor's job runs this"
    address = Address(mine.namespace, name, mine.job_id, mine.job_id)
    actor = CurrentActor(ActorHandle(cluster, address), _index(task_environ()["FRAY_JOB_NAME"]), name)
    asked = threading.Event()

    def stop() -> None:
        asked.set()
        actor.shutdown_event.set()

    on_stop(stop)
    settle(actor, owns_process=task_environ() is os.environ)
    instance, journal = _made(cluster, mine, actor, config, cls, lambda: cls(*args, **kwargs))
    try:
        server = _serve(cluster, instance, told(cls, config), address, config, journal)
    except StoreError as error:  # no fault of the actor's: an exception would be its end
        log.warning("the actor cannot be announced now, and starts again: %s", error)
        raise SystemExit(_TRY_AGAIN) from error
    actor.shutdown_event.wait()
    server.shutdown(_FLUSH)
    if actor.failure is not None:
        raise actor.failure
    if journal is not None:
        journal.close()
    if asked.is_set():
        raise SystemExit(_TERMINATED)


def _made(
    cluster: StorageCluster, mine: Here, actor: CurrentActor, config: ActorConfig, cls: type, make: Callable[[], Any]
) -> tuple[Any, Durable | None]:
    if config.checkpoint is None:
        return make(), None
    return restore(cluster, mine, config.checkpoint, actor, make, cls)


def _serve(
    cluster: StorageCluster,
    instance: Any,
    metadata: Mapping[str, Any],
    address: Address,
    config: ActorConfig,
    journal: Durable | None = None,
) -> ActorServer:
    server = ActorServer(cluster)
    server.register(
        address.name,
        instance,
        metadata,
        max_concurrency=config.max_concurrency,
        actor_id=address.actor_id,
        incarnation=int(task_environ().get(INCARNATION, 0)),
        journal=journal,
    )
    server.serve_background()
    return server


def _index(job_name: str) -> int:
    return int(job_name.rpartition("-")[2])


class HostedActor(Generic[T]):
    """An actor that this process serves.

    Attributes:
        handle: calls it, from here and from other jobs of the namespace.
    """

    def __init__(self, handle: ActorHandle[T], current: CurrentActor, server: ActorServer) -> None:
        self.handle = handle
        self._current = current
        self._server = server

    def shutdown(self) -> None:
        """Stop serving: what runs is answered first. Calls of this process fail from now on."""
        self.handle._end("was shut down by the program that hosted it")
        self._current.shutdown_event.set()
        self._server.shutdown(_FLUSH)


def host(
    cluster: StorageCluster,
    cls: type[T],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    name: str,
    config: ActorConfig,
) -> HostedActor[T]:
    """See `create.host_actor`."""
    mine = launcher(cluster.root)
    job, attempt = (mine.job_id, mine.attempt) if mine is not None else (cluster.owner() or "", ATTEMPT)
    address = Address(cluster.namespace, name, secrets.token_hex(8), job, attempt)
    current = CurrentActor(ActorHandle(cluster, address), 0, name)
    context = contextvars.copy_context()
    context.run(settle, current, False)
    instance = context.run(cls, *args, **kwargs)
    server = context.run(_serve, cluster, instance, told(cls, config), address, config)
    return HostedActor(current.handle, current, server)
