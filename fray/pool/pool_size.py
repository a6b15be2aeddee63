"""The size of a pool: how many workers it should have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fray.errors import InvalidInput

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
        pair = (num_workers, num_workers) if isinstance(num_workers, int) else tuple(num_workers)
        if len(pair) != 2 or not 0 <= pair[0] <= pair[1] or pair[1] < 1:
            raise InvalidInput("num_workers", num_workers, "give a number from 1 on, or a pair (least, most)")
        return cls(*pair)

    @property
    def idle(self) -> float:
        """Seconds without a task after which a worker ends itself; the driver starts others if there should be more."""
        return MAX_IDLE_SECONDS if self.least else SPARE_SECONDS

    def wanted(self, tasks: int) -> int:
        """How many workers so many unfinished tasks can use."""
        return min(max(tasks, self.least), self.most)
