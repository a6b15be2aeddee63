"""Stores that break one promise each, in memory, and clients in one process that use them."""

from __future__ import annotations

import asyncio
import random

from fray_coordinator.clock import RandomSource
from fray_coordinator.store.interface import (
    ABSENT,
    ANY,
    Applied,
    Expect,
    Expectation,
    Object,
)
from fray_coordinator.store.memory import MemoryBackend, MemoryContents
from fray_coordinator.store.store import Store
from tests.histories.calls import Call
from tests.histories.client import Client
from tests.histories.recorder import KEYS
from tests.support.virtual import VirtualClock, VirtualLoop


class Sound(MemoryBackend):
    """A sound store; every request takes a moment, so that others come between."""

    def __init__(self) -> None:
        super().__init__("memory://histories", MemoryContents(), VirtualClock())
        self.rng = random.Random(1)

    async def get(self, key: str) -> Object | None:
        await self._moment()
        return await super().get(key)

    async def put(self, key: str, data: bytes, expect: Expectation) -> Applied:
        await self._moment()
        return await super().put(key, data, expect)

    async def delete(self, key: str, expect: Expectation) -> None:
        await self._moment()
        await super().delete(key, expect)

    async def _moment(self) -> None:
        await asyncio.sleep(self.rng.uniform(0, 0.002))


class LosesUpdates(Sound):
    """A write on a version ignores the version."""

    async def put(self, key: str, data: bytes, expect: Expectation) -> Applied:
        return await super().put(key, data, expect if isinstance(expect, Expect) else ANY)


class CrownsTwoWinners(Sound):
    """A create overwrites an existing name."""

    async def put(self, key: str, data: bytes, expect: Expectation) -> Applied:
        return await super().put(key, data, ANY if expect is ABSENT else expect)


class ReadsStale(Sound):
    """Now and then a read is answered from a cache."""

    def __init__(self) -> None:
        super().__init__()
        self._cache: dict[str, Object | None] = {}

    async def get(self, key: str) -> Object | None:
        if key not in self._cache or self.rng.random() < 0.9:
            self._cache[key] = await super().get(key)
        return self._cache[key]


class ConjuresUp(Sound):
    """Now and then a create is acknowledged but not stored."""

    async def put(self, key: str, data: bytes, expect: Expectation) -> Applied:
        if expect is ABSENT and await super().get(key) is None and self.rng.random() < 0.2:
            return Applied("conjured")
        return await super().put(key, data, expect)


class BringsBack(Sound):
    """Now and then a deleted name appears again."""

    async def delete(self, key: str, expect: Expectation) -> None:
        before = await super().get(key)
        await super().delete(key, expect)
        if before is not None and self.rng.random() < 0.2:
            await super().put(key, before.data, ANY)


def used(backend: MemoryBackend, clients: int = 5, calls: int = 100) -> list[Call]:
    """The calls of several clients on it, in virtual time, so that the machine's load does not change their order."""
    diary: dict[tuple[str, int], Call] = {}

    def note(call: Call) -> None:
        diary[call.client, call.number] = call

    async def use(name: str) -> None:
        store = Store(backend, VirtualClock(), RandomSource(name), patience=0.15)
        client = Client(store, name, KEYS, random.Random(name), note)
        for _ in range(calls):
            await client.act()

    async def all_of_them() -> None:
        await asyncio.gather(*(use(f"client{number}") for number in range(clients)))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(all_of_them())
    return list(diary.values())
