"""Handles of actors, as callers have them in hand, wherever the actors are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from fray.block import Block
from fray.display import Shown
from fray.rpc.calling import ActorMethod, MethodCaller, checked_method
from fray.types import JobStatus

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


class ActorHandle(Shown, Block, Generic[T]):
    """A handle of one actor: `handle.f(x)` calls and waits, `handle.f.remote(x)` gives a future.

    Usable before the actor is up, by any number of threads. Pickles as names, and works in every job of the namespace.
    The actor is asked to end at the end of a `with` or `async with` block of its handle.
    """

    def __getattr__(self, name: str) -> ActorMethod[..., Any]:
        method: ActorMethod[..., Any] = ActorMethod(self._caller, checked_method(self, name))
        self.__dict__[name] = method  # found without this function the next time
        return method

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._shut_down("was shut down at the end of its block")

    @abstractmethod
    def _caller(self) -> MethodCaller:
        """Makes the calls of this process to the actor."""

    @abstractmethod
    def _shut_down(self, why: str) -> None:
        """Ask that the actor end, and return at once; calls of this process fail from now on, and say `why`."""

    @abstractmethod
    def _status(self) -> JobStatus:
        """PENDING or RUNNING while the actor may be called, then how it ended."""

    @abstractmethod
    def _identity(self) -> object:
        """Tells the actor from all others; two handles of one actor are equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())


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
