"""Creates actors on Ray, one or a group, and finds them by their names."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from fray.actor.create import HostedActor, actor_namespace, actor_request, requested_actor, retry_policy
from fray.actor.group import PolledActorGroup
from fray.backends.ray.actor_calls import RayActorAddress, RayActorHandle, exclusive_name, statuses, value_of
from fray.backends.ray.connection import NAMESPACE, connected, pickle_registered_by_value, process_variables
from fray.backends.ray.demands import actor_options, checked_spec, warn_if_too_large
from fray.cluster.api import Cluster
from fray.display import MAX_ROWS, ShownTable
from fray.errors import ActorUnavailableError, InvalidInput, NameTaken
from fray.types import ActorConfig, JobId, JobRequest, JobStatus
from fray_layouts.spec import JobSpec

if TYPE_CHECKING:
    from fray.cluster.job_handle import JobHandle


T = TypeVar("T")


class RayActorGroup(PolledActorGroup[T]):
    """A group of Ray actors. `statuses` asks each of them; those that do not answer yet are PENDING."""

    def __init__(self, name: str, handles: Sequence[RayActorHandle[T]]) -> None:
        super().__init__(name, handles)
        self._probes = [handle._probe for handle in handles]

    @property
    def jobs(self) -> list[JobHandle]:
        remedy = "actors on Ray are not jobs: use statuses() and is_done() to see how they are, shutdown() to end them"
        raise InvalidInput("jobs", self, remedy)

    @property
    def _job_id(self) -> JobId:
        return JobId(str(self._handles[0]))

    def statuses(self) -> list[JobStatus]:
        return statuses(self._probes)

    def _ready(self) -> list[int]:
        return [index for index, status in enumerate(self.statuses()) if status is JobStatus.RUNNING]

    def _gather(self, ready: set[int], wanted: int, until: float) -> bool:
        while len(ready) < wanted:
            asked = {probe.ask(): index for index, probe in enumerate(self._probes) if index not in ready}
            asked.pop(None, None)
            if (living := len(ready) + len(asked)) < wanted:
                ended = next(probe.ended for probe in self._probes if probe.ended is not None)
                raise ActorUnavailableError(self._shortage(living, wanted, ended))
            answers, _ = connected().wait(list(asked), timeout=max(until - time.monotonic(), 0))
            if not answers:
                return False
            ready.update(asked[one] for one in answers if self._probes[asked[one]].status() is JobStatus.RUNNING)
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return RayActorGroup, (self._name, self._handles)

    def _shown(self) -> ShownTable:
        rows = [(repr(handle), status.value) for handle, status in zip(self._handles, self.statuses(), strict=True)]
        title = f"{len(rows)} actors of {self._name}"
        return ShownTable(title, rows[:MAX_ROWS], ("actor", "status"), len(rows[MAX_ROWS:]))


_owned: dict[str, Any] = {}
"""Ray's handles of the actors that end with this process, by name. Ray ends an actor when no handle of it is left."""


def create_actors(cluster: Cluster, request: JobRequest, count: int) -> RayActorGroup[Any]:
    """Create actors; returns at once.

    They end with the process that creates them, unless the request says `detached`.

    Args:
        request: made by `fray.actor.create.actor_request`.
        count: at least 1.

    Raises:
        InvalidInput: an argument is wrong or cannot be pickled, or Ray does not support what is asked for.
        NameTaken: one detached actor was asked for, and another detached actor of that name lives.
    """
    if request.detached and count == 1:
        return RayActorGroup(request.name, _created(cluster, request, [_exclusive_name(cluster, request)]))
    own = exclusive_name(cluster.namespace, request.name)
    names = [f"{own}/{index}-{secrets.token_hex(8)}" for index in range(count)]
    return RayActorGroup(request.name, _created(cluster, request, names))


def create_named_actor(cluster: Cluster, request: JobRequest, get_if_exists: bool) -> RayActorHandle[Any]:
    """Create an actor that owns the request's name, or with `get_if_exists` find it; returns at once.

    Raises:
        NameTaken: another actor has the name.
        InvalidInput: as `create_actors`.
    """
    try:
        return _created(cluster, request, [_exclusive_name(cluster, request)])[0]
    except NameTaken:
        found = find_named_actor(cluster, request.name) if get_if_exists else None
        if found is None:
            raise
        return found


def find_named_actor(cluster: Cluster, name: str) -> RayActorHandle[Any] | None:
    """Find the actor that owns the name now. Returns its handle once it serves calls; None if there is no such actor.

    Looks in the cluster's namespace, then in its `lasting_namespace`. Raises ActorUnavailableError if the actor ends
    before it serves calls.
    """
    ray = connected(cluster.root)
    for namespace in dict.fromkeys([cluster.namespace, cluster.lasting_namespace]):
        try:
            actor = ray.get_actor(exclusive_name(namespace, name), namespace=NAMESPACE)
        except ValueError:
            continue
        address = value_of(actor.address.remote(), f"actor {name!r}")
        return RayActorHandle(address, actor)
    return None


def host_actor(
    cluster: Cluster,
    cls: type[T],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    name: str,
    config: ActorConfig | None = None,
) -> HostedActor[T]:
    """Create an actor that ends with this process. It has its own process, since Ray cannot call objects of a driver.

    Raises:
        InvalidInput: as `create_actors`.
        ActorUnavailableError: the actor's `__init__` raised an exception.
    """
    group = create_actors(cluster, actor_request(cls, args, kwargs, name, config), 1)
    (handle,) = group.wait_ready()
    return HostedActor(handle, name, lambda: handle._shut_down("was shut down by the program that hosted it"))


def end_owned() -> None:
    """End the actors that this process owns."""
    while _owned:
        connected().kill(_owned.popitem()[1])


def _exclusive_name(cluster: Cluster, request: JobRequest) -> str:
    return exclusive_name(actor_namespace(cluster, request), request.name)


def _created(cluster: Cluster, request: JobRequest, ray_names: Sequence[str]) -> list[RayActorHandle[Any]]:
    cls, args, kwargs, name, config = requested_actor(request)
    ray = connected(cluster.root)
    spec = _checked_spec(request, config)
    options = _options(spec, config, process_variables(cluster.root, cluster.namespace))
    secret = spec.environment.secret_env_vars
    warn_if_too_large(f"actor {name!r}", spec.resources)
    pickle_registered_by_value()
    handles: list[RayActorHandle[Any]] = []
    for index, ray_name in enumerate(ray_names):
        address = RayActorAddress(cluster.root, ray_name, name, retry_policy(cls, config), request.detached)
        try:
            actor = _remote_host().options(name=ray_name, **options).remote(address, index, secret, cls, args, kwargs)
        except ray.exceptions.ActorAlreadyExistsError:
            remedy = "find it with get_actor, or choose another name"
            raise NameTaken(f"there is an actor named {name!r} already; {remedy}") from None
        if not request.detached:
            _owned[ray_name] = actor
        handles.append(RayActorHandle(address, actor))
    return handles


@functools.cache
def _remote_host() -> Any:
    """The host as a Ray actor class. It is cached, because Ray stores the class once per actor class."""
    from fray.backends.ray.actor_host import CONTROL, ActorHost  # imported late: the module imports Ray

    return connected().remote(concurrency_groups={CONTROL: 1})(ActorHost)


def _checked_spec(request: JobRequest, config: ActorConfig) -> JobSpec:
    """The spec of an actor. Raises InvalidInput if it cannot be pickled, or if Ray does not support it."""
    if config.checkpoint is not None:
        remedy = "checkpoints need storage, which Ray does not have: leave it out, or use a StorageClient"
        raise InvalidInput("actor_config.checkpoint", config.checkpoint, remedy)
    return checked_spec(replace(request, actor=False))


def _options(spec: JobSpec, config: ActorConfig, variables: dict[str, str]) -> dict[str, Any]:
    """Ray's options for an actor."""
    return actor_options(spec.resources) | {
        "namespace": NAMESPACE,
        "lifetime": "detached" if spec.detached else None,
        "max_concurrency": config.max_concurrency,
        "max_restarts": -1 if config.max_restarts is None else config.max_restarts,
        "runtime_env": {"env_vars": {**spec.environment.env_vars, **variables}},
    }
