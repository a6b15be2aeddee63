"""What every job context offers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar, overload

from fray.errors import InvalidInput
from fray.futures import (
    GeneratorFuture,
    SupportsResult,
    result_of,
    wait,
)
from fray.types import JobStatus

T = TypeVar("T")

Lifetime = Literal["non_detached", "detached"]


class JobContext(Protocol):
    """Runs tasks and keeps objects, inside one job: the same code on one thread, on many, or on a cluster.

    Used in a `with` statement it is closed at the end of that.
    """

    def put(self, obj: Any) -> Any:
        """A reference to an object, for tasks that take it as an argument; `get` gives the object back."""
        ...

    @overload
    def get(self, ref: SupportsResult[T]) -> T: ...
    @overload
    def get(self, ref: Sequence[SupportsResult[T]]) -> list[T]: ...
    @overload
    def get(self, ref: Any) -> Any: ...
    def get(self, ref: Any) -> Any:
        """What a reference or a future, a task's or an actor's, stands for, waiting for it; any other value as it is.

        Args:
            ref: or a list: what comes back is a list of what each of its members stands for.

        Raises:
            Exception: what the task raised.
        """
        return map_refs(ref, result_of)

    @overload
    def run(self, fn: Callable[..., Iterator[T]], *args: Any, name: str | None = None) -> GeneratorFuture[T]: ...
    @overload
    def run(self, fn: Callable[..., T], *args: Any, name: str | None = None) -> Future[T]: ...
    def run(self, fn: Callable[..., Any], *args: Any, name: str | None = None) -> Future[Any]:
        """Start `fn(*args)`. Of a generator function the future also yields, by `next`, while the function runs.

        Args:
            name: accepted from programs that name their tasks; nothing shows it.
        """
        ...

    def wait(self, futures: Sequence[T], num_returns: int = 1) -> tuple[list[T], list[T]]:
        """Wait until `num_returns` are ready: exactly those, and the others, as the same objects.

        Args:
            futures: of tasks and of actors; a reference is ready, as any other value is.
        """
        return wait(futures, num_returns)

    def create_actor(
        self,
        actor_class: type,
        *args: Any,
        name: str | None = None,
        get_if_exists: bool = False,
        lifetime: Lifetime = "non_detached",
        preemptible: bool = True,
        num_cpus: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """An object that answers calls one after the other; `handle.method.remote(x)` is a future.

        Args:
            name: others may ask for the actor by it; without one it is nobody's but the caller's.
            get_if_exists: give the actor that has the name already, instead of raising.
            lifetime: a "detached" actor outlives the job, or the program, that created it.
            preemptible: False keeps it off hosts that may be taken away.
            num_cpus: cores it reserves.

        Raises:
            ValueError: the name is taken.
        """
        ...

    def delete_actor(self, actor: Any) -> None:
        """Ask that an actor end; returns at once. Its name is free, and calls from now on raise ActorUnavailableError.

        Args:
            actor: the handle that `create_actor` gave.
        """
        ...

    def get_actor_status(self, actor: Any) -> JobStatus:
        """Where an actor is in its life: PENDING and RUNNING while it is to be called, then how it ended."""
        ...

    def close(self) -> None:
        """Let go of threads, workers and stored objects; returns at once. Actors stay.

        `get` what is needed before. A context that is used again begins anew.
        """
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def map_refs(ref: Any, value: Callable[[Any], Any]) -> Any:
    """`value(ref)`; of a list, that of each member."""
    return [value(each) for each in ref] if isinstance(ref, list) else value(ref)


def checked_workers(max_workers: int) -> int:
    """`max_workers` of a context. Raises InvalidInput."""
    if max_workers < 1:
        raise InvalidInput("max_workers", max_workers, "give a number from 1 on")
    return max_workers
