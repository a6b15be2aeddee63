"""Clocks that are minutes off and drift."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.loop import SimLoop

EPOCH = 1_800_000_000.0
"""The storage's time of day when a run begins."""


@dataclass(frozen=True, slots=True)
class HostClock:
    """The clock of one machine: `offset` seconds off, and `rate` times as fast as the storage's clock.

    `mishap` may raise after a sleep.
    """

    loop: SimLoop
    offset: float = 0.0
    rate: float = 1.0
    mishap: Callable[[str], None] = lambda place: None

    @staticmethod
    def drawn(
        loop: SimLoop, draw: random.Random, offset: float, drift: float, mishap: Callable[[str], None]
    ) -> HostClock:
        """Up to `offset` seconds off, and up to `drift` too fast or too slow."""
        return HostClock(loop, draw.uniform(-offset, offset), draw.uniform(1 - drift, 1 + drift), mishap)

    def boottime(self) -> float:
        return self.loop.now * self.rate + 1000.0

    def wall(self) -> float:
        return EPOCH + self.offset + self.loop.now * self.rate

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.rate)
        self.mishap("sleep")

    def when(self, boottime: float) -> float:
        """The loop's time at which this clock shows `boottime`."""
        return (boottime - 1000.0) / self.rate
