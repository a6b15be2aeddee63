"""The process of an actor: creates the object and serves it, in a job of its own or in the program that hosts it."""

import contextvars
import logging
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

from fray.actor.address import ActorAddress
from fray.actor.checkpointing import CheckpointJournal, restore
from fray.actor.config import retry_policy, validated
from fray.actor.current import CurrentActor, set_current_actor
from fray.actor.handle import ActorHandle
from fray.actor.storage_handle import StorageActorHandle
from fray.block import Block
from fray.cluster.current import storage_cluster
from fray.cluster.current_job import current_job, current_job_on
from fray.cluster.storage import StorageCluster
from fray.rpc.server import EXIT_TERMINATED, ActorServer
from fray.sync import persist_in_thread
from fray.types import ActorConfig
from fray_agents.tasks.current_task import on_stop, task_environ
from fray_coordinator.actors import naming
from fray_coordinator.core import Core
from fray_coordinator.errors import StaleAttempt, StoreError
from fray_coordinator.protocol.drivers import DRIVER_ATTEMPT
from fray_coordinator.variables import read_variable
from fray_layouts.errors import InvalidInput
from fray_layouts.spec_checks import check_name
from fray_layouts.states import NameState

log = logging.getLogger("fray")

T = TypeVar("T")

GRACE = 10.0
"""Seconds between the request that an actor end and its kill. Running calls may end in that time."""

_SHUTDOWN_GRACE = GRACE - 1.0
"""Seconds of `GRACE` for running calls and their replies. The remaining second is for the exit of the process."""

_EXIT_TEMPFAIL = 75
"""Exit code for a temporary failure (sysexits.h, EX_TEMPFAIL): the next attempt may succeed."""


def serve_actor(
    cls: type, args: Sequence[Any], kwargs: Mapping[str, Any], name: str, config: ActorConfig, owns_name: bool = False
) -> None:
    """Serve one actor until its job is asked to end, or the actor ends itself.

    Args:
        owns_name: the actor's name was taken for its job alone; its endpoint has the name's incarnation.

    Raises:
        StaleAttempt: the name was given up, or another job has it.
        SystemExit: the job was asked to end, or the storage did not answer.
        Exception: what the actor's `__init__` raised, or what the actor failed with.
    """
    cluster, mine = storage_cluster(), current_job()
    assert mine is not None, "only an actor's job runs this"
    address = ActorAddress(mine.namespace, name, mine.job_id, mine.job_id)
    index = int((read_variable("FRAY_JOB_NAME", task_environ()) or "").rpartition("-")[2])
    actor = CurrentActor(StorageActorHandle(cluster, address), index, name)
    asked = threading.Event()

    def stop() -> None:
        asked.set()
        actor.shutdown_event.set()

    on_stop(stop)
    set_current_actor(actor, owns_process=task_environ() is os.environ)
    incarnation = 0
    if owns_name:
        read = partial(_own_incarnation, address=address)
        incarnation = persist_in_thread(lambda: cluster.run(read), "the actor's name")
    journal: CheckpointJournal | None = None
    if config.checkpoint is None:
        instance = cls(*args, **kwargs)
    else:
        instance, journal = restore(cluster, mine, config.checkpoint, actor, lambda: cls(*args, **kwargs), cls)
    try:
        server = _serve(cluster, instance, asdict(retry_policy(cls, config)), address, config, journal, incarnation)
    except StoreError as error:  # not the actor's fault; any other exception would fail the job
        log.warning("the actor cannot be announced now, and starts again: %s", error)
        raise SystemExit(_EXIT_TEMPFAIL) from error
    actor.shutdown_event.wait()
    server.shutdown(_SHUTDOWN_GRACE)
    if actor.failure is not None:
        raise actor.failure
    if journal is not None:
        journal.close()
    if asked.is_set():
        raise SystemExit(EXIT_TERMINATED)


async def _own_incarnation(core: Core, address: ActorAddress) -> int:
    """The incarnation in which this job holds its actor's name; not part of the call, so a retried job has its own."""
    found = await naming.read_name(core, address.namespace, "actor", address.name)
    if found is None or found.state != NameState.HELD or found.job != address.actor_id:
        raise StaleAttempt(f"actor {address.name} in namespace {address.namespace}: this job does not hold the name")
    return found.incarnation


def _serve(
    cluster: StorageCluster,
    instance: Any,
    metadata: Mapping[str, Any],
    address: ActorAddress,
    config: ActorConfig,
    journal: CheckpointJournal | None = None,
    incarnation: int = 0,
) -> ActorServer:
    server = ActorServer(cluster)
    server.register(
        address.name,
        instance,
        metadata,
        max_concurrency=config.max_concurrency,
        actor_id=address.actor_id,
        incarnation=incarnation,
        journal=journal,
    )
    server.serve_background()
    return server


class HostedActor(Block, Generic[T]):
    """An actor that this process serves. `host_actor` returns it.

    Attributes:
        handle: a handle of the actor, for calls from here and from other jobs of the namespace.
    """

    def __init__(self, handle: ActorHandle[T], name: str, stop: Callable[[], None]) -> None:
        self.handle = handle
        self._name = name
        self._stop = stop

    def __repr__(self) -> str:
        return f"HostedActor({self._name!r})"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Stop serving. Running calls are answered first; later calls from this process fail."""
        self._stop()


def host_actor(
    cluster: StorageCluster,
    cls: type[T],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    name: str,
    config: ActorConfig | None = None,
) -> HostedActor[T]:
    """Create an actor in this process and serve it until `shutdown` is called or the process ends.

    Raises:
        Exception: what the actor's `__init__` raised.
        InvalidInput: an argument is wrong.
    """
    check_name("name", name)
    config = validated(config or ActorConfig())
    if config.checkpoint is not None:
        remedy = "only an actor with a job of its own is durable"
        raise InvalidInput("actor_config.checkpoint", config.checkpoint, remedy)
    mine = current_job_on(cluster.root)
    job, attempt = (mine.job_id, mine.attempt) if mine is not None else (cluster.owner() or "", DRIVER_ATTEMPT)
    address = ActorAddress(cluster.namespace, name, secrets.token_hex(8), job, attempt)
    handle = StorageActorHandle[T](cluster, address)
    current = CurrentActor(handle, 0, name)
    context = contextvars.copy_context()
    context.run(set_current_actor, current, False)
    instance = context.run(cls, *args, **kwargs)
    server = context.run(_serve, cluster, instance, asdict(retry_policy(cls, config)), address, config)

    def stop() -> None:
        handle._end("was shut down by the program that hosted it")
        current.shutdown_event.set()
        server.shutdown(_SHUTDOWN_GRACE)

    return HostedActor(handle, name, stop)
