"""Handles of actors, as callers have them in hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from fray.actor.address import ActorAddress
from fray.actor.caller import HandleCaller, caller_of
from fray.cluster.current import environment_cluster, open_cluster
from fray.cluster.current_job import current_job
from fray.cluster.storage import StorageCluster
from fray.display import Shown, ShownTable
from fray.errors import InvalidInput
from fray.rpc.calling import ActorMethod, checked_method
from fray.types import JobId

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


class ActorHandle(Shown, Generic[T]):
    """A handle of one actor: `handle.f(x)` calls and waits, `handle.f.remote(x)` gives a future.

    Usable before the actor is up, by any number of threads. Pickles as names, and works in every job of the namespace.
    """

    def __init__(self, cluster: StorageCluster, address: ActorAddress) -> None:
        self._cluster = cluster
        self._address = address
        self._own_caller: HandleCaller | None = None

    def __getattr__(self, name: str) -> ActorMethod[..., Any]:
        method: ActorMethod[..., Any] = ActorMethod(self._caller, checked_method(self, name))
        self.__dict__[name] = method  # found without this function the next time
        return method

    def _caller(self) -> HandleCaller:
        if self._own_caller is None or self._own_caller.pid != os.getpid():
            self._own_caller = caller_of(self._cluster, self._address)
        return self._own_caller

    def __enter__(self) -> Self:
        """The handle: the actor is asked to end at the end of the block."""
        self._check_own_job()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._shut_down("was shut down at the end of its block")

    def _shut_down(self, why: str) -> None:
        """Ask that the actor end, and return at once."""
        self._check_own_job()
        self._cluster.terminate(JobId(self._address.job))
        self._end(why)

    def _check_own_job(self) -> None:
        if self._address.attempt:
            raise InvalidInput("actor", self, "the program that hosts it ends it, by HostedActor.shutdown()")

    def _end(self, why: str) -> None:
        """Calls of this process fail from now on."""
        self._caller().end(why)

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (type(self), self._cluster.root, self._address)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and self._address == other._address

    def __hash__(self) -> int:
        return hash(self._address)

    def __repr__(self) -> str:
        return f"ActorHandle({self._address.name!r}, {self._address.actor_id!r})"

    def _shown(self) -> ShownTable:
        job = self._cluster.poll(JobId(self._address.job))._shown()
        return replace(job, title=f"actor {self._address.name} ({self._address.job})")


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
