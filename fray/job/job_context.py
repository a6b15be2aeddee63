"""The interface of job contexts: tasks, shared objects and actors inside one job."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar, overload

from fray.errors import InvalidInput
from fray.futures import GeneratorFuture, SupportsResult, TaskFuture, result_of, wait
from fray.types import JobRequest, JobStatus

if TYPE_CHECKING:
    from fray.actor.handle import ActorHandle


T = TypeVar("T")

Lifetime = Literal["non_detached", "detached"]


class JobContext(Protocol):
    """Runs tasks, keeps objects and creates actors inside one job: on one thread, on many, or on a cluster.

    A `with` statement closes the context at its end.
    """

    def put(self, obj: Any) -> Any:
        """Store an object and return a reference. A task that gets the reference as an argument gets the object.

        `get` also returns the object of a reference.
        """

    @overload
    def get(self, ref: SupportsResult[T]) -> T: ...
    @overload
    def get(self, ref: Sequence[SupportsResult[T]]) -> list[T]: ...
    @overload
    def get(self, ref: Any) -> Any: ...
    def get(self, ref: Any) -> Any:
        """Wait for the value of a reference or of a task's or actor's future; other values are returned unchanged.

        Args:
            ref: a reference or future, or a list of them, for which a list of values is returned.

        Raises:
            Exception: what the task raised.
        """
        return map_refs(ref, result_of)

    @overload
    def run(self, fn: Callable[..., Iterator[T]], *args: Any, name: str | None = None) -> GeneratorFuture[T]: ...
    @overload
    def run(self, fn: Callable[..., T], *args: Any, name: str | None = None) -> TaskFuture[T]: ...
    def run(self, fn: Callable[..., Any], *args: Any, name: str | None = None) -> TaskFuture[Any]:
        """Start the task `fn(*args)`, and return its future. That of a generator function yields values as they come.

        Args:
            name: a name for the task. Only Ray shows it.
        """
        return self._run(fn, args, name)

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], name: str | None) -> TaskFuture[Any]: ...

    def wait(self, futures: Sequence[T], num_returns: int = 1) -> tuple[list[T], list[T]]:
        """Wait until `num_returns` futures are ready. Returns exactly so many ready ones, and the others.

        Args:
            futures: futures of tasks or actors. A reference, or any other value, is always ready.
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
        """Create an actor, an object that runs one call at a time. `handle.method.remote(x)` returns a future.

        Args:
            name: the name by which others find the actor; without a name only the caller has it.
            get_if_exists: return the actor that already has the name, instead of raising.
            lifetime: a "detached" actor outlives the job, or the program, that created it.
            preemptible: False keeps the actor off hosts that the cloud may take away.
            num_cpus: cores that it reserves.

        Raises:
            ValueError: the name is taken.
        """

    def delete_actor(self, actor: Any) -> None:
        """Ask an actor to end, and return at once. Its name is free, and later calls raise ActorUnavailableError.

        Args:
            actor: the handle that `create_actor` returned.
        """

    def get_actor_status(self, actor: Any) -> JobStatus:
        """The status of an actor: PENDING or RUNNING while it can be called, afterwards the status it ended with.

        Args:
            actor: the handle that `create_actor` returned.
        """

    def close(self) -> None:
        """End threads and workers, and remove stored objects; returns at once. Actors go on.

        Threads finish the tasks that were started. Call `get` for every value that you need before you close the
        context. A closed context can be used again; it then starts new threads or workers.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class ProcessActorsContext(JobContext):
    """A context whose actors have processes of their own."""

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
    ) -> ActorHandle[Any]:
        from fray.actor.named import named_actor_request  # imported late: contexts of one process need none of it

        request = named_actor_request(actor_class, args, kwargs, name, lifetime, preemptible, num_cpus)
        return self._create_requested(request, get_if_exists)

    def get_actor_status(self, actor: ActorHandle[Any]) -> JobStatus:
        return actor._status()

    @abstractmethod
    def _create_requested(self, request: JobRequest, get_if_exists: bool) -> ActorHandle[Any]:
        """Create the actor of a `named_actor_request`, or with `get_if_exists` find it."""


def map_refs(ref: Any, value: Callable[[Any], Any]) -> Any:
    """Apply `value` to a reference, or to each member of a list."""
    return [value(each) for each in ref] if isinstance(ref, list) else value(ref)


def checked_workers(max_workers: int) -> int:
    """Return `max_workers` if it is an integer of at least 1. Raises InvalidInput if it is not."""
    if not isinstance(max_workers, int) or max_workers < 1:
        raise InvalidInput("max_workers", max_workers, "give a number from 1 on")
    return max_workers


class SimpleActor:
    """A counter. call_count: the number of calls of `increment`."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.call_count = 0

    def increment(self, amount: int = 1) -> int:
        """Add `amount` to the value, and return it."""
        self.call_count += 1
        self.value += amount
        return self.value

    def get_value(self) -> int:
        """The value."""
        return self.value
