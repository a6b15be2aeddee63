"""The interface of job contexts: tasks, shared objects and actors, wherever they run."""

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar, overload

from fray.errors import InvalidInput
from fray.futures import GeneratorFuture, SupportsResult, TaskFuture, result_of, wait
from fray.types import JobStatus

T = TypeVar("T")

Lifetime = Literal["non_detached", "detached"]


class JobContext(Protocol):
    """Runs tasks, keeps objects and creates actors inside one job: on one thread, on many, or on a cluster.

    A `with` statement closes the context at its end.
    """

    def put(self, obj: Any) -> Any:
        """Store an object; returns a reference, which tasks take as an argument and `get` turns into the object."""

    @overload
    def get(self, ref: SupportsResult[T]) -> T: ...
    @overload
    def get(self, ref: Sequence[SupportsResult[T]]) -> list[T]: ...
    @overload
    def get(self, ref: Any) -> Any: ...
    def get(self, ref: Any) -> Any:
        """Wait for the value of a reference, or of a task's or an actor's future; any other value is returned as it is.

        Args:
            ref: one, or a list of them, for which a list of values is returned.

        Raises:
            Exception: what the task raised.
        """
        return map_refs(ref, result_of)

    @overload
    def run(self, fn: Callable[..., Iterator[T]], *args: Any, name: str | None = None) -> GeneratorFuture[T]: ...
    @overload
    def run(self, fn: Callable[..., T], *args: Any, name: str | None = None) -> TaskFuture[T]: ...
    def run(self, fn: Callable[..., Any], *args: Any, name: str | None = None) -> TaskFuture[Any]:
        """Start the task `fn(*args)`. The future of a generator function also yields its values, while they come.

        Args:
            name: accepted from programs that name their tasks; nothing shows it.
        """

    def wait(self, futures: Sequence[T], num_returns: int = 1) -> tuple[list[T], list[T]]:
        """Wait until `num_returns` futures are ready; returns exactly so many, and the others, as the same objects.

        Args:
            futures: of tasks or of actors; a reference, or any other value, is always ready.
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
        """Create an actor: an object that answers calls one after the other; `handle.method.remote(x)` gives a future.

        Args:
            name: by which others get the actor; without a name only the caller has it.
            get_if_exists: return the actor that has the name already, instead of raising.
            lifetime: a "detached" actor outlives the job, or the program, that created it.
            preemptible: False keeps it off hosts that may be taken away.
            num_cpus: cores that it reserves.

        Raises:
            ValueError: the name is taken.
        """

    def delete_actor(self, actor: Any) -> None:
        """End an actor; returns at once. Its name is free, and later calls raise ActorUnavailableError.

        Args:
            actor: the handle that `create_actor` gave.
        """

    def get_actor_status(self, actor: Any) -> JobStatus:
        """The state of an actor: PENDING or RUNNING while it may be called, then how it ended.

        Args:
            actor: the handle that `create_actor` gave.
        """

    def close(self) -> None:
        """End threads and workers, and remove stored objects; returns at once. Actors stay.

        Threads end when they have done what was started. Call `get` before for every value that is needed. A context
        that is used again begins anew.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def map_refs(ref: Any, value: Callable[[Any], Any]) -> Any:
    """Apply `value` to a reference, or to each member of a list."""
    return [value(each) for each in ref] if isinstance(ref, list) else value(ref)


def checked_workers(max_workers: int) -> int:
    """`max_workers` of a context. Raises InvalidInput if it is no number, or less than 1."""
    if not isinstance(max_workers, int) or max_workers < 1:
        raise InvalidInput("max_workers", max_workers, "give a number from 1 on")
    return max_workers
