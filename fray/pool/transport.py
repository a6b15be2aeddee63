"""The interface between a pool and its workers, and the pool's size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fray.errors import InvalidInput
from fray.futures import TaskFuture
from fray.pool.pool_task import PackedFunction

SPARE_SECONDS = 30.0
"""Seconds for which workers above the minimum may be idle before they end, so that they stay during short pauses."""

MAX_IDLE_SECONDS = 600.0
"""Seconds without a task after which a worker of any pool ends itself, because its driver may be gone."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The minimum and maximum number of workers."""

    minimum: int
    maximum: int

    @classmethod
    def of(cls, num_workers: int | Sequence[int]) -> PoolSize:
        """Make a size from a number or a pair. Raises InvalidInput if it is neither."""
        pair = num_workers if isinstance(num_workers, Sequence) else (num_workers, num_workers)
        are_numbers = len(pair) == 2 and all(isinstance(count, int) for count in pair)
        if not are_numbers or not 0 <= pair[0] <= pair[1] or pair[1] < 1:
            raise InvalidInput("num_workers", num_workers, "give a number from 1 on, or a pair (minimum, maximum)")
        return cls(*pair)

    @property
    def idle(self) -> float:
        """Seconds without a task after which a worker ends itself. If more are needed, the driver starts others."""
        return MAX_IDLE_SECONDS if self.minimum else SPARE_SECONDS

    def wanted(self, tasks: int) -> int:
        """How many workers there should be for so many unfinished tasks."""
        return min(max(tasks, self.minimum), self.maximum)


class TaskCall(NamedTuple):
    """A call to submit as a task.

    Attributes:
        key: the user's key for the task; "" if it has none.
        again: whether the key's earlier task has failed and this one replaces it.
    """

    function: PackedFunction
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    key: str = ""
    again: bool = False


def pool_progress(submitted: int, unfinished: int, workers: int, wanted: int, why: str) -> str:
    """The progress of a pool, for people. why: the reason why workers are missing, or ""."""
    tasks = f"{submitted - unfinished} of {submitted} tasks done, " if submitted else ""
    return f"{tasks}{workers} of {wanted} workers up{f' ({why})' * bool(why)}"


class Transport(Protocol):
    """Starts a pool's workers and brings tasks to them. It may be used by many threads."""

    @property
    def workers(self) -> int:
        """The number of workers there are now."""

    @property
    def wanted(self) -> int:
        """The number of workers there should be."""

    @property
    def unfinished(self) -> int:
        """The number of tasks that are not done."""

    def submit(self, calls: Sequence[TaskCall], workers: int) -> list[TaskFuture[Any]]:
        """Submit calls in this order. workers: the maximum number of workers.

        Raises:
            InvalidInput: something cannot be pickled; nothing was submitted.
            PoolClosed: the pool is closed.
        """

    def grow(self, count: int) -> None:
        """Start `count` more workers; returns at once."""

    def shrink(self, count: int) -> None:
        """End up to `count` idle workers."""

    def await_workers(self, count: int, timeout: float) -> None:
        """Block until there are `count` workers. Raises the builtin TimeoutError, PoolClosed or JobFailed."""

    def drain(self, within: float) -> bool:
        """Wait for all tasks, at most `within` seconds. Returns whether all are done."""

    def progress(self) -> str:
        """The progress of the tasks, and the known reason why workers are missing, for people. Makes no request."""

    def close(self, why: str) -> None:
        """End every unfinished task with PoolClosed, and accept no more."""

    def end(self) -> None:
        """End all workers and every unfinished task; returns at once."""
