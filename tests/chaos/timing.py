"""Measures the time until an agent's end is noticed, and until its jobs run again."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from fray_coordinator.core import Core
from fray_coordinator.errors import StoreUnavailable
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord
from tests.chaos.effects import Effects
from tests.chaos.fleet import AgentProcess

POLL_INTERVAL = 0.1
TICK = 0.05
"""Seconds between two signs of life of an attempt, see job.py."""


@dataclass(frozen=True, slots=True)
class End:
    """An agent was ended at a time, in seconds of CLOCK_BOOTTIME."""

    agent: str
    how: str
    at: float


@dataclass(slots=True)
class Sightings:
    """Watches agents that were ended.

    Attributes:
        patience: seconds that it may take until an end is noticed.
        detected: seconds until the record says that the agent is dead, by how it ended.
    """

    core: Core
    patience: float
    ends: list[End] = field(default_factory=list)
    detected: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    undetected: list[str] = field(default_factory=list)
    _woken: set[str] = field(default_factory=set)
    _watching: set[asyncio.Task[None]] = field(default_factory=set)

    def expect_death(self, agent: AgentProcess, how: str) -> asyncio.Task[None]:
        """Expect the agent's record to say soon that it is dead; the task ends then."""
        end = End(agent.ids[-1], how, time.clock_gettime(time.CLOCK_BOOTTIME))
        self.ends.append(end)
        watching = asyncio.create_task(self._watch(end))
        self._watching.add(watching)
        return watching

    def woke(self, agent: str) -> None:
        """Note that it continues under this id, which is allowed if a fault of the storage hid its silence."""
        self._woken.add(agent)

    async def settle(self) -> None:
        """Wait until no agent is watched any more."""
        await asyncio.gather(*self._watching)

    async def _watch(self, end: End) -> None:
        while (waited := time.clock_gettime(time.CLOCK_BOOTTIME) - end.at) < self.patience:
            try:
                found = await self.core.records.read(AgentKeys.key(end.agent), AgentRecord)
            except StoreUnavailable:
                continue
            if found is not None and found.record.state == "dead":
                self.detected[end.how].append(waited)
            if found is None or found.record.state != "live" or end.agent in self._woken:
                return  # if it is absent, the agent was ended before it had joined
            await asyncio.sleep(POLL_INTERVAL)
        self.undetected.append(f"{end.agent}, {end.how}, was not noticed within {self.patience:g} s")

    def recovered(self, effects: Effects) -> dict[str, list[float]]:
        """Seconds from an agent's end until each job that it was running ran again, by how the agent ended."""
        times: dict[str, list[float]] = defaultdict(list)
        for end in self.ends:
            for own in effects.attempts.values():
                for attempt in own:
                    ran = attempt.agent == end.agent and attempt.begun < end.at < attempt.last_seen + 4 * TICK
                    successor = effects.successor(attempt)
                    if ran and successor is not None:
                        times[end.how].append(successor.begun - end.at)
        return times


def distribution(name: str, seconds: Sequence[float]) -> str:
    """One line: how many, least, median, 95th percentile, most."""
    ordered = sorted(seconds)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    figures = (ordered[0], statistics.median(ordered), p95, ordered[-1])
    told = "  ".join(
        f"{what} {value:6.2f}" for what, value in zip(("min", "median", "p95", "max"), figures, strict=True)
    )
    return f"  {name:<32} n {len(ordered):3}  {told}"
