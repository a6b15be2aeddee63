"""The interface between a pool and its workers: direct calls, or a queue in storage."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from fray.pool.pool_task import PackedFunction


class TaskCall(NamedTuple):
    """A call to be made. key: of its task, never used again; "" if nobody will ask for the task."""

    function: PackedFunction
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    key: str = ""


class Transport(Protocol):
    """A pool's way to its workers; may be used by many threads."""

    @property
    def workers(self) -> int:
        """How many workers there are now."""

    @property
    def wanted(self) -> int:
        """How many workers there should be."""

    @property
    def unfinished(self) -> int:
        """How many tasks are not done."""

    def submit(self, calls: Sequence[TaskCall], workers: int) -> list[Future[Any]]:
        """Submit calls, in this order. workers: how many there may be.

        Raises:
            InvalidInput: something cannot be pickled; nothing was submitted.
            PoolClosed: it takes no tasks any more.
        """

    def grow(self, count: int) -> None:
        """Start workers; returns at once."""

    def shrink(self, count: int) -> None:
        """End up to so many workers that have nothing to do."""

    def await_workers(self, count: int, timeout: float) -> None:
        """Block until there are so many workers; raises builtin TimeoutError, PoolClosed, JobFailed."""

    def drain(self) -> None:
        """Block until all tasks are done."""

    def close(self, why: str) -> None:
        """End every unfinished task with PoolClosed, and take no more."""

    def end(self) -> None:
        """End all workers and every unfinished task; returns at once."""
