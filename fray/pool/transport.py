"""What the two ways of reaching workers have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from fray.pool.pool_task import PackedFunction


class TaskCall(NamedTuple):
    """One call to make. key: tells it from others for ever; "" where nobody will ask for it again."""

    function: PackedFunction
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    key: str = ""


class Transport(Protocol):
    """Reaches the workers of one pool; may be used by many threads."""

    @property
    def workers(self) -> int:
        """How many workers there are now."""
        ...

    @property
    def wanted(self) -> int:
        """How many there should be."""
        ...

    @property
    def unfinished(self) -> int:
        """How many tasks are not done."""
        ...

    def submit(self, calls: Sequence[TaskCall], workers: int) -> list[Future[Any]]:
        """Hand calls over, in this order. workers: how many there may be.

        Raises:
            InvalidInput: something cannot be pickled; nothing was handed over.
            PoolClosed: it takes no tasks any more.
        """
        ...

    def grow(self, count: int) -> None:
        """Start workers; returns at once."""
        ...

    def shrink(self, count: int) -> None:
        """End up to so many workers that have nothing to do."""
        ...

    def await_workers(self, count: int, timeout: float) -> None:
        """Block until there are so many workers; raises builtin TimeoutError, PoolClosed, JobFailed."""
        ...

    def drain(self) -> None:
        """Block until all tasks are done."""
        ...

    def close(self, why: str) -> None:
        """Give up what is not done, and take nothing more."""
        ...

    def end(self) -> None:
        """End all workers, and give up what is not done; returns at once."""
        ...
