"""Virtual time: coroutines that wait for hours run in milliseconds, and always in the same order.

The loop never waits. When nothing is ready to run, its time jumps to the next timer. Participants share one memory
store; each has its own `Core`, and its connection to the store can be cut.
"""

from __future__ import annotations

import asyncio
import os
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, TypeVar, TypeVarTuple

from fray_coordinator.clock import RandomSource
from fray_coordinator.core import Core, core_on
from fray_coordinator.store.interface import (
    Applied,
    BadObject,
    Expectation,
    Listed,
    NotApplied,
    NotModified,
    Object,
    Refused,
    Unknown,
    Version,
)
from fray_coordinator.store.memory import MemoryBackend, MemoryContents
from fray_coordinator.store.store import Store
from fray_layouts.records import ClusterSettings

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH = 1_800_000_000.0
"""The wall clock when a run begins."""


class _NoWait(selectors.DefaultSelector):
    """Asks the sockets, but turns every wait into a jump of the loop's time."""

    jumped: float = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready:
            return ready
        assert timeout is not None, "every task waits for something that nobody will do"
        self.jumped += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time moves only when there is nothing else to do."""

    def __init__(self) -> None:
        self._jumps = _NoWait()
        super().__init__(self._jumps)
        # A float's after years. With that of the real clock, no timer comes due after 194 days.
        self._clock_resolution = 1e-8

    def time(self) -> float:
        return self._jumps.jumped

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run it at once: a thread would take real time, during which virtual time would run far ahead."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


class VirtualClock:
    """The running loop's time as a `Clock`."""

    def boottime(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return EPOCH + self.boottime()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class StoreConnection:
    """One participant's connection to the shared store; every request lets others run first.

    Attributes:
        asked: (verb, key or prefix) of every request so far; a conditional read that found nothing new is followed by
            ("unchanged", key).
        cut: every request ends in a time-out, without effect.
        read_only: writes fail, but reads are answered, as on a full disk.
        refused: requests with this verb, on a key with this prefix, are refused.
        unanswered: requests with this verb, on a key with this prefix, get HTTP 500.
        spoilt: requests with this verb, on a key with this prefix, find something that is not an object.
        before: a function that is called once, just before a request with this verb on a key with this prefix.
    """

    scheme = "memory"
    local = True

    def __init__(self, contents: MemoryContents, clock: VirtualClock) -> None:
        self.root = f"memory://virtual-{os.getpid()}"  # tests in other processes have agents with the same names
        self.address = self.root
        self.asked: list[tuple[str, str]] = []
        self.cut = False
        self.read_only = False
        self.refused: list[tuple[str, str]] = []
        self.unanswered: list[tuple[str, str]] = []
        self.spoilt: list[tuple[str, str]] = []
        self.before: dict[tuple[str, str], Callable[[], Awaitable[object]]] = {}
        self._clock = clock
        self._backend = MemoryBackend(self.root, contents, clock)

    async def get(self, key: str) -> Object | None:
        await self._pass("get", key)
        return await self._backend.get(key)

    async def get_if_changed(self, key: str, version: Version | None) -> Object | NotModified | None:
        await self._pass("get_if_changed", key)
        answer = await self._backend.get_if_changed(key, version)
        if isinstance(answer, NotModified):
            self.asked.append(("unchanged", key))
        return answer

    async def put(self, key: str, data: bytes, expect: Expectation) -> Applied:
        await self._pass("put", key)
        return await self._backend.put(key, data, expect)

    async def delete(self, key: str, expect: Expectation) -> None:
        await self._pass("delete", key)
        await self._backend.delete(key, expect)

    async def withdraw(self, key: str, expect: Version, aside: str) -> None:
        await self._pass("withdraw", key)
        await self._backend.withdraw(key, expect, aside)

    async def list(self, prefix: str, after: str | None, limit: int | None, versions: bool) -> list[Listed]:
        await self._pass("list", prefix)
        return await self._backend.list(prefix, after, limit, versions)

    def turn_to(self, contents: MemoryContents) -> None:
        """From now on find these contents."""
        self._backend = MemoryBackend(self.root, contents, self._clock)

    def server_offset(self) -> float | None:
        return 0.0

    async def close(self) -> None:
        """Keep the contents."""

    async def _pass(self, verb: str, key: str) -> None:
        self.asked.append((verb, key))
        await asyncio.sleep(0)
        for wanted in [w for w in self.before if w[0] == verb and key.startswith(w[1])]:
            await self.before.pop(wanted)()
        if self.cut:
            raise Unknown("the connection to the store is cut")
        if self.read_only and verb in ("put", "delete", "withdraw"):
            raise NotApplied("the disk is full")
        if _concerns(self.refused, verb, key):
            raise Refused("HTTP 403: the test says so")
        if _concerns(self.unanswered, verb, key):
            raise Unknown("HTTP 500: the test says so")
        if _concerns(self.spoilt, verb, key):
            raise BadObject(f"{key}: no regular file: the test says so")


def _concerns(rules: list[tuple[str, str]], verb: str, key: str) -> bool:
    return any(verb == wanted and key.startswith(prefix) for wanted, prefix in rules)


@dataclass(slots=True)
class Cluster:
    """A root in memory and its participants; the random source of the n-th one is seeded with n."""

    settings: ClusterSettings = field(default_factory=ClusterSettings)
    contents: MemoryContents = field(default_factory=MemoryContents)
    clock: VirtualClock = field(default_factory=VirtualClock)
    connections: list[StoreConnection] = field(default_factory=list)

    async def core(self, local: bool = True) -> Core:
        """Add a participant. local: whether its requests cost nothing."""
        connection, rng = StoreConnection(self.contents, self.clock), RandomSource(len(self.connections))
        connection.local = local
        self.connections.append(connection)
        return await core_on(Store(connection, self.clock, rng), self.settings, self.clock, rng)

    def cut(self, cut: bool = True) -> None:
        """Cut all participants off from the store: an outage."""
        for connection in self.connections:
            connection.cut = cut

    def replace(self, contents: MemoryContents) -> MemoryContents:
        """Put other contents under the root, for present and later participants; returns those that were there."""
        before, self.contents = self.contents, contents
        for connection in self.connections:
            connection.turn_to(contents)
        return before

    def keys(self, prefix: str = "") -> list[str]:
        """The keys under `prefix`, seen from outside."""
        return list(self.contents.keys(prefix, None))


def run(main: Callable[[Cluster], Coroutine[Any, Any, T]], settings: ClusterSettings | None = None) -> T:
    """Run `main` on a fresh cluster in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main(Cluster(settings or ClusterSettings())))
