"""The job context on Ray: its tasks and actors run on Ray, and objects are in Ray's object store."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from fray.actor.handle import ActorHandle
from fray.backends.ray.actor_calls import RayActorHandle, future_of, value_of
from fray.backends.ray.actor_create import create_named_actor
from fray.backends.ray.connection import AUTO, check_streams, connected, pickle_registered_by_value, process_variables
from fray.cluster.api import Cluster
from fray.cluster.current import open_cluster
from fray.futures import GeneratorFuture, TaskFuture, result_of, run_into
from fray.job.job_context import ProcessActorsContext, map_refs
from fray.types import JobRequest, ResourceConfig
from fray_layouts.units import parse_bytes
from fray_runtime.threads import nobody_waits, start_thread

T = TypeVar("T")


class RayContext(ProcessActorsContext):
    """A `JobContext` on Ray.

    References are Ray's own: a task that takes one as an argument gets the object. Ray decides how many tasks run at
    once, by what each of them reserves. The context can be pickled, and works in tasks.

    Args:
        cluster: the cluster whose namespace has its actors; by default the Ray that this process is connected to or
            runs in.
        resources: what each task reserves; by default one core.
        ray_options: further Ray options for each task, such as `max_retries`.
    """

    def __init__(
        self, cluster: Cluster | None = None, resources: ResourceConfig | None = None, **ray_options: Any
    ) -> None:
        self._cluster = cluster or open_cluster(AUTO)
        self._resources = resources or ResourceConfig(cpu=1)
        self._ray_options = ray_options

    def put(self, obj: Any) -> Any:
        return self._ray.put(obj)

    def get(self, ref: Any) -> Any:
        """Wait for the value of a reference or of a task's or actor's future; other values are returned unchanged.

        Args:
            ref: a reference or future, or a list of them, for which a list of values is returned.

        Raises:
            Exception: what the task raised.
            CallInterrupted: Ray has lost the object.
        """
        kind = self._ray.ObjectRef
        return map_refs(ref, lambda one: value_of(one, "an object") if isinstance(one, kind) else result_of(one))

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], name: str | None) -> TaskFuture[Any]:
        what = f"task {name or getattr(fn, '__name__', fn)!r}"
        options = {**self._options(), "name": name or what}
        pickle_registered_by_value()
        if not inspect.isgeneratorfunction(fn):
            return future_of(_remote(_call).options(**options).remote(fn, *args), what)
        check_streams(what)
        items = _remote(_iterate).options(num_returns="streaming", **options).remote(fn, *args)
        future = GeneratorFuture[Any]()

        def values() -> Iterator[Any]:
            return (value_of(item, what) for item in items)

        start_thread(lambda: run_into(values, (), future), "fray-items", nobody_waits)  # the future has the exception
        return future

    def _create_requested(self, request: JobRequest, get_if_exists: bool) -> RayActorHandle[Any]:
        return create_named_actor(self._cluster, request, get_if_exists)

    def delete_actor(self, actor: ActorHandle[Any]) -> None:
        """End an actor at once, together with the call that it runs. Its name is free.

        Args:
            actor: the handle that `create_actor` returned.
        """
        assert isinstance(actor, RayActorHandle), "as `create_actor` makes it"
        actor._kill("was deleted")

    def close(self) -> None:
        """Do nothing: Ray itself ends its workers, and removes objects that nobody refers to."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._cluster, self._resources, self._ray_options)

    @property
    def _ray(self) -> Any:
        return connected(self._cluster.root)

    def _options(self) -> dict[str, Any]:
        memory = self._resources.memory
        return {
            "num_cpus": self._resources.cpu,
            "memory": None if memory is None else parse_bytes("memory", memory),
            "runtime_env": {"env_vars": process_variables(self._cluster.root, self._cluster.namespace)},
            **self._ray_options,
        }


def _unpickled(cluster: Cluster, resources: ResourceConfig, ray_options: dict[str, Any]) -> RayContext:
    return RayContext(cluster, resources, **ray_options)


@functools.cache
def _remote(function: Callable[..., Any]) -> Any:
    """Make a function a Ray remote function. It is cached, because Ray stores the function once per remote function."""
    return connected().remote(function)


def _call(fn: Callable[..., T], *args: Any) -> T:
    return fn(*args)


def _iterate(fn: Callable[..., Iterator[T]], *args: Any) -> Iterator[T]:
    for item in fn(*args):  # noqa: UP028 - Ray sends values into its iterator, which not every iterator accepts
        yield item
