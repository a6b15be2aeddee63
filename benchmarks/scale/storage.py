"""One bucket of a service: it takes time, refuses requests that come too fast, and counts requests by the second."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice

from sortedcontainers import SortedList

from benchmarks.scale.loop import LoopClock
from benchmarks.scale.services import Service
from fray_coordinator.store.interface import (
    ROWS_PER_REQUEST,
    Applied,
    Expectation,
    Listed,
    NotApplied,
    NotModified,
    Object,
    Version,
)
from fray_coordinator.store.memory import MemoryBackend, MemoryContents
from tests.support.name_limit import LimitedMemory


class ManyContents(MemoryContents):
    """Contents in which the cost of a change does not grow with the number of objects."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self._sorted = SortedList()

    def set(self, key: str, value: Object) -> None:
        if key not in self.objects:
            self._sorted.add(key)
        self.objects[key] = value

    def remove(self, key: str) -> None:
        if self.objects.pop(key, None):
            self._sorted.remove(key)

    def keys(self, prefix: str, after: str | None) -> Iterator[str]:
        behind = after is not None and after >= prefix
        end = f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}" if prefix else None
        return iter(self._sorted.irange(after if behind else prefix, end, inclusive=(not behind, False)))


class Rate:
    """Requests a second that are served; doubles after `doubling` seconds in which at least half of them were used."""

    def __init__(self, rate: float, doubling: float) -> None:
        self.rate = rate
        self._growth = 2.0 ** (1.0 / doubling)
        self._left = rate
        self._asked = 0
        self._second = 0
        self._since = 0.0

    def take(self, now: float) -> bool:
        """Whether one more request is served now."""
        if self._second < int(now):
            if 2 * self._asked >= self.rate:
                self.rate *= self._growth
            self._asked, self._second = 0, int(now)
        self._left = min(self.rate, self._left + (now - self._since) * self.rate)
        self._since = now
        self._asked += 1
        if self._left < 1:
            return False
        self._left -= 1
        return True


CLASS_OF = {"get": "reads", "put": "writes", "delete": "deletes", "list": "lists"}


def limit_of(kind: str) -> str:
    """The limit that requests of one class fall under."""
    return "writes" if kind in ("writes", "deletes") else "reads"


class Storage:
    """The bucket.

    Attributes:
        asked: by (prefix, class), requests in each second, also refused ones, which were sent but not billed.
        aims: by second and class, the kinds of objects that these requests were for.
        throttled: refused requests by (prefix, class).
        commits: times at which a job's record first said "succeeded".
        deaths: when each agent was declared dead, by key.
    """

    def __init__(self, service: Service, clock: LoopClock, seed: int, grown: float = 1.0) -> None:
        self.service = service
        self.contents = ManyContents()
        self.asked: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        self.aims: defaultdict[tuple[int, str], Counter[str]] = defaultdict(Counter)
        self.throttled: Counter[tuple[str, str]] = Counter()
        self.commits: list[float] = []
        self.deaths: dict[str, float] = {}
        self._grown = grown
        self.clock = clock
        self._rng = random.Random(seed)
        self._rates: dict[tuple[str, str], Rate] = {}
        kind = LimitedMemory if service.one_name else MemoryBackend
        self.memory = kind("memory://scale", self.contents, clock)

    def time_for(self, verb: str) -> float:
        """Seconds that a request takes."""
        return self.service.latencies[verb].draw(self._rng)

    def admit(self, verb: str, key: str, aim: str) -> None:
        """Count a request, and refuse it if it comes too fast."""
        now = self.clock.boottime()
        kind, prefix = CLASS_OF[verb], key.partition("/")[0]
        self.asked[prefix, kind][int(now)] += 1
        self.aims[int(now), limit_of(kind)][f"{aim} {kind}"] += 1
        if not self._rate(prefix, kind).take(now):
            self.throttled[prefix, kind] += 1
            raise NotApplied(f"429: too many requests for {prefix}")

    def notice(self, key: str, data: bytes) -> None:
        """Note writes that the scenarios wait for."""
        if key.startswith("jobs/") and b'"status":"succeeded"' in data:
            self.commits.append(self.clock.boottime())
        elif key.startswith("agents/") and b'"state":"dead"' in data:
            self.deaths.setdefault(key, self.clock.boottime())

    def refused(self, key: str) -> None:
        """A write that the limit of one name refused."""
        self.throttled[f"{key.partition('/')[0]} (one name)", "writes"] += 1

    def limited_as(self, prefix: str, kind: str) -> tuple[str, str]:
        """The limit of the service for requests of one class: its prefix, and "writes" or "reads"."""
        return prefix if self.service.by_prefix else "bucket", limit_of(kind)

    def rates(self) -> dict[str, float]:
        """Requests a second that the bucket serves by now."""
        return {f"{whose} {which}": rate.rate for (whose, which), rate in self._rates.items()}

    def first_rates(self) -> dict[str, float]:
        """Requests a second that one limit allowed at first."""
        return {"writes": self.service.writes * self._grown, "reads": self.service.reads * self._grown}

    def forget(self) -> None:
        """Start to count from zero."""
        for counted in (self.asked, self.aims, self.throttled, self.commits, self.deaths):
            counted.clear()

    def _rate(self, prefix: str, kind: str) -> Rate:
        limit = self.limited_as(prefix, kind)
        if limit not in self._rates:
            self._rates[limit] = Rate(self.first_rates()[limit[1]], self.service.doubling)
        return self._rates[limit]


class StoreConnection:
    """One participant's connection to the storage.

    Attributes:
        silent: whether the participant is dead, so that none of its requests arrives or is answered.
        own: the key of its own record; "" if it has none.
    """

    scheme = "scale"
    local = False

    def __init__(self, storage: Storage) -> None:
        self.root = self.address = storage.memory.root
        self.silent = False
        self.own = ""
        self._storage = storage

    async def get(self, key: str) -> Object | None:
        await self._send("get", key)
        return await self._storage.memory.get(key)

    async def get_if_changed(self, key: str, version: Version | None) -> Object | NotModified | None:
        known = self._storage.contents.objects.get(key)
        await self._send("get", key, "unchanged" if known is not None and known.version == version else "get")
        return await self._storage.memory.get_if_changed(key, version)

    async def put(self, key: str, data: bytes, expect: Expectation) -> Applied:
        await self._send("put", key)
        try:
            written = await self._storage.memory.put(key, data, expect)
        except NotApplied:
            self._storage.refused(key)
            raise
        self._storage.notice(key, data)
        return written

    async def delete(self, key: str, expect: Expectation) -> None:
        await self._send("delete", key)
        await self._storage.memory.delete(key, expect)

    async def withdraw(self, key: str, expect: Version, aside: str) -> None:
        await self.delete(key, expect)

    async def list(self, prefix: str, after: str | None, limit: int | None, versions: bool) -> list[Listed]:
        """List page after page; the rows are those at the time of the last page."""
        await self._send("list", prefix)
        more = -(-self._rows(prefix, after, limit) // ROWS_PER_REQUEST) - 1
        for _ in range(more):
            await self._send("list", prefix)
        return await self._storage.memory.list(prefix, after, limit, versions)

    def server_offset(self) -> float | None:
        return 0.0

    async def close(self) -> None:
        """Keep the contents."""

    def _rows(self, prefix: str, after: str | None, limit: int | None) -> int:
        if limit is not None and limit <= ROWS_PER_REQUEST:
            return 1
        return sum(1 for _ in islice(self._storage.contents.keys(prefix, after), limit))

    async def _send(self, verb: str, key: str, timed_as: str = "") -> None:
        if self.silent:
            await asyncio.get_running_loop().create_future()
        await self._storage.clock.sleep(self._storage.time_for(timed_as or verb))
        if self.silent:
            await asyncio.get_running_loop().create_future()
        self._storage.admit(verb, key, self._aim(key))

    def _aim(self, key: str) -> str:
        """The kind of object, for people: its area, and the part of it."""
        area, _, rest = key.partition("/")
        match area:
            case "agents":
                return "own agent" if key == self.own else "other agent"
            case "pools":
                return f"{area} {rest.rpartition('/')[2]}"
        return "exits" if "/exits/" in rest else area
