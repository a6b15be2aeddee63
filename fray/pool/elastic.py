"""How many workers a pool should have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fray.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Size:
    """At least and at most so many workers."""

    least: int
    most: int

    @classmethod
    def of(cls, num_workers: int | Sequence[int]) -> Size:
        """From a number, or a pair. Raises InvalidInput."""
        pair = (num_workers, num_workers) if isinstance(num_workers, int) else tuple(num_workers)
        if len(pair) != 2 or not 0 <= pair[0] <= pair[1] or pair[1] < 1:
            raise InvalidInput("num_workers", num_workers, "give a number from 1 on, or a pair (least, most)")
        return cls(*pair)

    def wanted(self, tasks: int) -> int:
        """The workers that so many unfinished tasks can use."""
        return min(max(tasks, self.least), self.most)
