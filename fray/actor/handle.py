"""The interface of actor handles, on any backend, and the typing helpers `typed` and `method`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from fray.display import Shown
from fray.rpc.calling import ActorMethod, MethodCaller, checked_method
from fray.sync import Block
from fray.types import JobStatus

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


class ActorHandle(Shown, Block, Generic[T]):
    """A handle of one actor: `handle.f(x)` calls and waits, `handle.f.remote(x)` returns a future.

    It can be used before the actor is up, and from any number of threads. It pickles as the actor's address, and works
    in every job of the namespace. At the end of a `with` or `async with` block of the handle the actor is asked to end.
    """

    def __getattr__(self, name: str) -> ActorMethod[..., Any]:
        method: ActorMethod[..., Any] = ActorMethod(self._caller, checked_method(self, name))
        self.__dict__[name] = method  # the next access finds it there and does not come here
        return method

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._shut_down("was shut down at the end of its block")

    @abstractmethod
    def _caller(self) -> MethodCaller:
        """The object that makes this process's calls to the actor."""

    @abstractmethod
    def _shut_down(self, why: str) -> None:
        """Ask the actor to end, and return at once; later calls from this process fail with `why` in their error."""

    @abstractmethod
    def _status(self) -> JobStatus:
        """PENDING or RUNNING while the actor can be called, afterwards the status that it ended with."""

    @abstractmethod
    def _identity(self) -> object:
        """What identifies the actor. Two handles are equal if it is equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())


def typed(handle: ActorHandle[T]) -> T:
    """Return the same handle; type checkers take it for an instance of the actor's class.

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
        """Tell type checkers that callers can use `.remote` and its siblings; at run time it changes nothing."""
        return function
