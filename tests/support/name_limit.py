"""A memory store with the one limit of buckets that clusters reach: how often a name may be written."""

from __future__ import annotations

from fray_coordinator.clock import Clock
from fray_coordinator.store.interface import Applied, Expectation, NotApplied
from fray_coordinator.store.memory import MemoryBackend, MemoryContents


class NameLimit:
    """The documented limit for writes of one name on GCS: a burst of 3, refilled at 1 a second; then 429."""

    BURST = 3.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._names: dict[str, tuple[float, float]] = {}

    def spend(self, key: str) -> None:
        """Count one write of `key`. Raises `NotApplied` if the name is written too fast."""
        now = self._clock.boottime()
        left, since = self._names.get(key, (self.BURST, now))
        left = min(self.BURST, left + now - since)
        if left < 1:
            raise NotApplied(f"429: {key} is written faster than once a second", after=1 - left)
        self._names[key] = (left - 1, now)


class LimitedMemory(MemoryBackend):
    """A memory backend that refuses writes which GCS would refuse."""

    def __init__(self, root: str, contents: MemoryContents, clock: Clock) -> None:
        super().__init__(root, contents, clock)
        self._limit = NameLimit(clock)

    async def put(self, key: str, data: bytes, expect: Expectation) -> Applied:
        self._limit.spend(key)
        return await super().put(key, data, expect)
