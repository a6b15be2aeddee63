"""Handles: what callers hold of an actor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from fray.actor.address import ActorAddress
from fray.actor.connection import ActorConnection, connection_to
from fray.cluster.current import environment_cluster, open_cluster
from fray.cluster.current_job import current_job

if TYPE_CHECKING:
    from collections.abc import Callable

    from fray.cluster.storage import StorageCluster
    from fray.rpc.future import ActorFuture

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


class ActorMethod(Generic[P, R]):
    """A method of an actor. All ways to call it raise the method's own exceptions, with the remote traceback as text.

    A call waits for the actor to be up, follows its restarts, and is never run twice in one process of it. One that may
    have begun in a process that died is made again only if the method is `idempotent`, the actor durable, or its
    `max_task_retries` allows it.

    Raises:
        ActorUnavailableError: the actor has ended for good.
        CallInterrupted: the actor's process died while the call may have been running.
    """

    __slots__ = ("_handle", "_name")

    def __init__(self, handle: ActorHandle[Any], name: str) -> None:
        self._handle = handle
        self._name = name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call and wait for the result."""
        result: R = self._handle._line().call(self._name, args, kwargs)
        return result

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> ActorFuture[R]:
        """Call without waiting."""
        return self._handle._line().start(self._name, args, kwargs)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> ActorFuture[R]:
        """The same as `remote`: every call goes on without its connection, and its result is asked for again."""
        return self._handle._line().start(self._name, args, kwargs)

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
        """Call a generator and iterate over what it yields; it waits while the consumer is slow."""
        return self._handle._line().stream(self._name, args, kwargs)

    def __repr__(self) -> str:
        return f"<method {self._name} of {self._handle!r}>"


class ActorHandle(Generic[T]):
    """Calls one actor: `handle.f(x)` waits, `handle.f.remote(x)` gives a future.

    Usable before the actor is up, by any number of threads. Pickles as names, and works in every job of the namespace.
    """

    def __init__(self, cluster: StorageCluster, address: ActorAddress) -> None:
        self._cluster = cluster
        self._address = address
        self._own: ActorConnection | None = None

    def __getattr__(self, name: str) -> ActorMethod[..., Any]:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        method: ActorMethod[..., Any] = ActorMethod(self, name)
        self.__dict__[name] = method  # found without this function the next time
        return method

    def _line(self) -> ActorConnection:
        if self._own is None or self._own.pid != os.getpid():
            self._own = connection_to(self._cluster, self._address)
        return self._own

    def _end(self, why: str) -> None:
        """Calls of this process fail from now on."""
        self._line().end(why)

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (type(self), self._cluster.root, self._address)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and self._address == other._address

    def __hash__(self) -> int:
        return hash(self._address)

    def __repr__(self) -> str:
        return f"ActorHandle({self._address.name!r}, {self._address.actor_id!r})"


def typed(handle: ActorHandle[T]) -> T:
    """The same handle; type checkers take it for an instance of the actor's class.

    `typed(handle).f(x)` then has the type that `f` returns, and `typed(handle).f.remote(x)` that of its future, if the
    class marks `f` as a `method`.
    """
    return cast(T, handle)


if TYPE_CHECKING:

    class method(Generic[P, R]):
        def __init__(self, function: Callable[Concatenate[Any, P], R]) -> None: ...

        def __get__(self, instance: object, owner: type) -> ActorMethod[P, R]: ...

else:

    def method(function):
        """Tell type checkers that callers have `.remote` and its siblings; while running it changes nothing."""
        return function


def _loaded(kind: type[ActorHandle[Any]], root: str, address: ActorAddress) -> ActorHandle[Any]:
    return kind(cluster_at(root), address)


def cluster_at(root: str) -> StorageCluster:
    """The cluster that a pickled handle belongs to: in a job the one that runs it, whatever the pickler called it."""
    return environment_cluster() if current_job() is not None else open_cluster(root)
