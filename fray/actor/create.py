"""Creates actors as jobs, one or a group, and hosts an actor in its job.

First an actor's configuration is checked, and its retry policy follows from it. Then its job is launched. In that job's
process, or in the program that hosts it, `serve_actor` and `host_actor` create the object and serve it.
"""

import contextvars
import inspect
import logging
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar

from fray.actor.caller import ActorAddress
from fray.actor.checkpointing import CheckpointJournal, restore
from fray.actor.handle import ActorHandle
from fray.actor.running_actor import CurrentActor, set_current_actor
from fray.actor.storage_actors import StorageActorGroup, StorageActorHandle
from fray.cluster.api import Cluster
from fray.cluster.current import storage_cluster
from fray.cluster.current_job import current_job, current_job_on
from fray.cluster.storage import StorageCluster
from fray.entrypoints import NamedEntrypoint
from fray.job_spec import callable_name
from fray.rpc.actor_server import EXIT_TERMINATED, ActorServer
from fray.rpc.calling import RetryPolicy
from fray.sync import Block, persist_in_thread
from fray.types import (
    ActorConfig,
    CallableEntrypoint,
    CheckpointConfig,
    EnvironmentConfig,
    JobId,
    JobRequest,
    Namespace,
    ResourceConfig,
)
from fray_coordinator.actors import naming
from fray_coordinator.core import Core
from fray_coordinator.errors import StaleAttempt, StoreError
from fray_coordinator.protocol.drivers import DRIVER_ATTEMPT
from fray_layouts.bounds import MAX_ATTEMPTS
from fray_layouts.errors import InvalidInput, Permanent
from fray_layouts.object_keys import JobIds
from fray_layouts.records import NameRecord
from fray_layouts.spec_parsing import check_name
from fray_layouts.states import NameState
from fray_runtime.current_task import on_stop, task_environ
from fray_runtime.variables import read_variable

T = TypeVar("T")
log = logging.getLogger("fray")

F = TypeVar("F", bound=Callable[..., Any])


def validated(config: ActorConfig) -> ActorConfig:
    """Return the config unchanged. Raises InvalidInput if a field of it has a wrong value."""
    if not isinstance(config, ActorConfig):
        raise InvalidInput("actor_config", config, "give an ActorConfig")
    if not isinstance(config.max_concurrency, int) or config.max_concurrency < 1:
        raise InvalidInput("actor_config.max_concurrency", config.max_concurrency, "give at least 1")
    if config.max_restarts is not None and not (isinstance(config.max_restarts, int) and config.max_restarts >= 0):
        raise InvalidInput("actor_config.max_restarts", config.max_restarts, "give 0 or more, or None for no limit")
    if config.outage not in ("run", "stop"):
        raise InvalidInput("actor_config.outage", config.outage, "give run or stop")
    if config.checkpoint is not None:
        _check_checkpointing(config, config.checkpoint)
    return config


def _check_checkpointing(config: ActorConfig, policy: CheckpointConfig) -> None:
    if policy.calls is None and policy.seconds is None and not policy.replies:
        raise InvalidInput("actor_config.checkpoint", policy, "say after how many calls or seconds, or replies=True")
    for field, value in {"calls": policy.calls, "seconds": policy.seconds}.items():
        if value is not None and not (isinstance(value, (int, float)) and value > 0):
            raise InvalidInput(f"actor_config.checkpoint.{field}", value, "give a number above 0, or leave it out")
    if config.max_concurrency != 1:
        remedy = "a durable actor runs one call at a time, or a checkpoint would cut calls in half"
        raise InvalidInput("actor_config.max_concurrency", config.max_concurrency, remedy)


def idempotent(method: F) -> F:
    """Mark a method that may run twice for one call: if the actor dies during a call, the call is made again.

        @idempotent
        def get(self, key): ...

    Calls of other methods raise CallInterrupted in that case, unless `ActorConfig.max_task_retries` allows retries.
    """
    method.__fray_idempotent__ = True  # type: ignore[attr-defined]
    return method


def retry_policy(cls: type, config: ActorConfig) -> RetryPolicy:
    """The retry policy that the actor announces to its callers in the metadata of its endpoint."""
    marked = [name for name, member in inspect.getmembers(cls) if hasattr(member, "__fray_idempotent__")]
    return RetryPolicy(config.max_task_retries or 0, marked, config.checkpoint is not None)


def create_actors(cluster: StorageCluster, request: JobRequest, count: int) -> StorageActorGroup[Any]:
    """Create actors as jobs "<name>-0", "<name>-1" ...; returns at once.

    They end with the job, or the program outside of jobs, that creates them, unless the request says `detached`. Each
    call creates new actors, even if others had the name before. Only a detached actor that is not in a group owns its
    name.

    Args:
        request: made by `actor_request`.
        count: at least 1.

    Raises:
        InvalidInput: an argument is wrong or cannot be pickled; nothing was created.
        NameTaken: one detached actor was asked for, and another detached actor of that name lives.
        ParentNotRunning: somebody has stopped this job, or the job that stands for this program
            (`StorageCluster.owner`).
    """
    namespace = actor_namespace(cluster, request)
    if request.detached and count == 1:
        return StorageActorGroup(cluster, namespace, request.name, [launch_named(cluster, request, namespace)])
    parent = None if request.detached else cluster.owner()
    requests = [
        replace(request, name=f"{request.name}-{index}", namespace=namespace, parent=parent) for index in range(count)
    ]
    return StorageActorGroup(cluster, namespace, request.name, cluster.launch_many(requests))


def launch_named(cluster: StorageCluster, request: JobRequest, namespace: Namespace, exist_ok: bool = False) -> JobId:
    """Take the request's name and launch the actor's job. With `exist_ok`, return the job of the name's holder if any.

    Raises:
        NameTaken: another actor has the name, and `exist_ok` is False.
        InvalidInput, ParentNotRunning: as `create_actors`.
    """
    parent = None if request.detached else cluster.owner()
    name = f"{request.name}-0"
    found, job = cluster.run(lambda core: _take_name(core, namespace, request.name, name, exist_ok))
    if found.job != job:
        return JobId(found.job)
    serve = _serving_call(request)
    entrypoint = replace(serve, args=(*serve.args, True))
    own_id = JobIds.own(name, job)
    try:
        return cluster.launch(
            replace(request, name=name, id=own_id, namespace=namespace, parent=parent, entrypoint=entrypoint)
        )
    except (InvalidInput, Permanent):
        cluster.run(lambda core: naming.free_name(core, namespace, "actor", request.name, found.incarnation))
        raise


async def _take_name(core: Core, namespace: str, name: str, job_name: str, exist_ok: bool) -> tuple[NameRecord, str]:
    """Take the name if it is free. Returns the name's record, and the id of the job that it was to be taken for."""
    job = JobIds.unique(namespace, job_name, core.now(), core.rng.token())
    return await naming.take_name(core, namespace, "actor", name, job, exist_ok), job


class RequestedActor(NamedTuple):
    """The actor that a request of `actor_request` asks for."""

    cls: type
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str
    config: ActorConfig


def requested_actor(request: JobRequest) -> RequestedActor:
    """The actor that a request of `actor_request` asks for, for backends that serve it in another way."""
    return RequestedActor(*_serving_call(request).args)


def actor_namespace(cluster: Cluster, request: JobRequest) -> Namespace:
    """The namespace of a requested actor's name."""
    return cluster.lasting_namespace if request.detached else cluster.namespace


def _serving_call(request: JobRequest) -> CallableEntrypoint:
    call = request.entrypoint
    assert isinstance(call, CallableEntrypoint), "as `actor_request` makes it"
    return call


def actor_request(
    cls: type,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    name: str,
    config: ActorConfig | None = None,
    resources: ResourceConfig | None = None,
    environment: EnvironmentConfig | None = None,
    shown_as: str | None = None,
) -> JobRequest:
    """The request for the job that serves an actor. Its name still lacks the actor's number in its group.

    shown_as: what `fray status` says that the job runs; None: the actor's class.
    """
    check_name("name", name)
    if not callable(cls):
        raise InvalidInput("actor_class", cls, "give a class")
    config = validated(config or ActorConfig())
    restarts = MAX_ATTEMPTS if config.max_restarts is None else config.max_restarts
    return JobRequest(
        name=name,
        entrypoint=NamedEntrypoint(
            serve_actor, (cls, tuple(args), dict(kwargs), name, config), name=shown_as or f"actor {callable_name(cls)}"
        ),
        resources=ResourceConfig(cpu=0) if resources is None else resources,
        environment=environment,
        max_retries_failure=restarts,
        max_retries_preemption=restarts,
        grace=GRACE,
        priority=config.priority,
        detached=config.detached,
        actor=True,
        outage="run" if config.outage == "run" else "",
    )


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
