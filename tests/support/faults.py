"""Faults of requests to storage, and a backend that injects them without a server (with one: fault_proxy.py)."""

from __future__ import annotations

import enum
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import cycle
from typing import TypeVar

from fray_coordinator.clock import Clock, SystemClock
from fray_coordinator.store.interface import (
    Applied,
    AttemptFailed,
    Expectation,
    Listed,
    NotApplied,
    NotModified,
    Object,
    StoreBackend,
    Unknown,
    Version,
)

T = TypeVar("T")

LATENCY = 0.05


class Fault(enum.Enum):
    FAIL_BEFORE = "answers 503, nothing was done"
    APPLY_THEN_FAIL = "answers 503 although it was done"
    APPLY_THEN_DROP = "done, and the connection breaks before the answer"
    APPLY_LATE = "answers 504, and it is done later"
    CONFLICT = "answers 409"
    TOO_MANY = "answers 429"
    LATENCY = "answers late"


class Plan:
    """Which requests have a fault.

    Args:
        rate: the share of requests that get a random fault, reads too.
        held_back: how many late writes may be outstanding before the oldest is applied.
    """

    def __init__(self, rate: float = 0.0, held_back: int = 99, seed: int = 0) -> None:
        self.held_back = held_back
        self.suffered: list[Fault] = []
        self._script: list[Fault] = []
        self._rate = rate
        self._rng = random.Random(seed)
        self._kinds = cycle(self._rng.sample(list(Fault), len(Fault)))

    def then(self, *faults: Fault) -> None:
        """Give the next writes these faults, one after the other."""
        self._script += faults

    def next(self, is_write: bool) -> Fault | None:
        fault = self._script.pop(0) if self._script and is_write else None
        if fault is None and self._rng.random() < self._rate:
            fault = next(self._kinds)
        if fault:
            self.suffered.append(fault)
        return fault


class QuickClock(SystemClock):
    """A clock that sleeps a fiftieth of the time; its first sleep can call a function."""

    def __init__(self, meanwhile: Callable[[], Awaitable[object]] | None = None) -> None:
        self._meanwhile = meanwhile

    async def sleep(self, seconds: float) -> None:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile:
            await meanwhile()
        await super().sleep(seconds / 50)


class FaultyBackend:
    """A backend whose requests have the faults of `plan`."""

    def __init__(self, backend: StoreBackend, plan: Plan, clock: Clock) -> None:
        self.root, self.scheme, self.local = backend.root, backend.scheme, backend.local
        self.address = backend.address
        self.server_offset, self.close = backend.server_offset, backend.close
        self._backend = backend
        self._plan = plan
        self._clock = clock
        self._late: list[Callable[[], Awaitable[object]]] = []

    async def get(self, key: str) -> Object | None:
        return await self._suffer(lambda: self._backend.get(key), is_write=False)

    async def get_if_changed(self, key: str, version: Version | None) -> Object | NotModified | None:
        return await self._suffer(lambda: self._backend.get_if_changed(key, version), is_write=False)

    async def put(self, key: str, data: bytes, expect: Expectation) -> Applied:
        return await self._suffer(lambda: self._backend.put(key, data, expect), is_write=True)

    async def delete(self, key: str, expect: Expectation) -> None:
        await self._suffer(lambda: self._backend.delete(key, expect), is_write=True)

    async def withdraw(self, key: str, expect: Version, aside: str) -> None:
        await self._suffer(lambda: self._backend.withdraw(key, expect, aside), is_write=True)

    async def list(self, prefix: str, after: str | None, limit: int | None, versions: bool) -> list[Listed]:
        return await self._suffer(lambda: self._backend.list(prefix, after, limit, versions), is_write=False)

    async def release(self, keep: int = 0) -> None:
        """Apply the late writes, except for the last `keep`."""
        while len(self._late) > keep:
            with suppress(AttemptFailed):
                await self._late.pop(0)()

    async def _suffer(self, request: Callable[[], Awaitable[T]], is_write: bool) -> T:
        await self.release(self._plan.held_back)
        match self._plan.next(is_write):
            case Fault.FAIL_BEFORE:
                raise Unknown("503")
            case Fault.APPLY_THEN_FAIL | Fault.APPLY_THEN_DROP:
                with suppress(AttemptFailed):
                    await request()
                raise Unknown("503 or nothing")
            case Fault.APPLY_LATE:
                self._late.append(request)
                raise Unknown("504")
            case Fault.CONFLICT | Fault.TOO_MANY:
                raise NotApplied("409 or 429", after=0.1)
            case Fault.LATENCY:
                await self._clock.sleep(LATENCY)
        return await request()
