"""The interface between a pool and its workers, and how many of them there should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fray.errors import InvalidInput
from fray.futures import TaskFuture
from fray.pool.pool_task import PackedFunction

SPARE_SECONDS = 30.0
"""Seconds for which a worker beyond the least number may have nothing to do, so that a short pause between tasks ends
none."""

MAX_IDLE_SECONDS = 600.0
"""Seconds without a task after which a worker of any pool ends itself: its driver may be gone."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The least and the largest number of workers."""

    least: int
    most: int

    @classmethod
    def of(cls, num_workers: int | Sequence[int]) -> PoolSize:
        """From a number, or a pair. Raises InvalidInput."""
        pair = num_workers if isinstance(num_workers, Sequence) else (num_workers, num_workers)
        are_numbers = len(pair) == 2 and all(isinstance(count, int) for count in pair)
        if not are_numbers or not 0 <= pair[0] <= pair[1] or pair[1] < 1:
            raise InvalidInput("num_workers", num_workers, "give a number from 1 on, or a pair (least, most)")
        return cls(*pair)

    @property
    def idle(self) -> float:
        """Seconds without a task after which a worker ends itself; the driver starts others if there should be more."""
        return MAX_IDLE_SECONDS if self.least else SPARE_SECONDS

    def wanted(self, tasks: int) -> int:
        """How many workers so many unfinished tasks can use."""
        return min(max(tasks, self.least), self.most)


class TaskCall(NamedTuple):
    """A call to be made.

    Attributes:
        key: by which its task is known; "" if nobody will ask for it.
        again: there is a task of that key, which has failed.
    """

    function: PackedFunction
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    key: str = ""
    again: bool = False


def pool_progress(submitted: int, unfinished: int, workers: int, wanted: int, why: str) -> str:
    """How far a pool is, for people. why: workers are missing, or ""."""
    tasks = f"{submitted - unfinished} of {submitted} tasks done, " if submitted else ""
    return f"{tasks}{workers} of {wanted} workers up{f' ({why})' * bool(why)}"


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

    def submit(self, calls: Sequence[TaskCall], workers: int) -> list[TaskFuture[Any]]:
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

    def drain(self, within: float) -> bool:
        """Whether all tasks are done within so many seconds."""

    def tell(self) -> str:
        """How far the tasks are, and why workers are missing as far as that is known, for people; asks nothing."""

    def close(self, why: str) -> None:
        """End every unfinished task with PoolClosed, and take no more."""

    def end(self) -> None:
        """End all workers and every unfinished task; returns at once."""
