"""The stores that the suite runs on, each server started once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import pytest

from fray_coordinator.clock import Clock, RandomSource
from fray_coordinator.store.opening import open_backend
from fray_coordinator.store.store import Store
from tests.support import servers
from tests.support.fault_proxy import FaultProxy, fault_proxy
from tests.support.faults import FaultyBackend, Plan, QuickClock
from tests.support.servers import Server
from tests.support.writers import work, work_in_processes

SERVERS: dict[str, Callable[[], AbstractContextManager[Server]]] = {
    "gcs-emulator": servers.gcs_emulator,
    "fake-gcs": servers.fake_gcs,
    "moto": servers.moto,
    "seaweed": servers.seaweed,
}
EVERY = [
    "memory",
    "local",
    "gcs-emulator",
    "moto",
    *(pytest.param(server, marks=pytest.mark.slow) for server in ("fake-gcs", "seaweed")),
]
BREAKS = {
    "fake-gcs": {"conditional delete", "not modified"},
    "seaweed": {"order", "odd names"},
}
"""What test servers do not honour; the real services do."""


def every(*promises: str, slow_on: str = "") -> pytest.MarkDecorator:
    """Run the test on every store that keeps `promises`; on the store `slow_on` with the slow tests only."""
    kept = [store for store in EVERY if not BREAKS.get(_name(store), set()) & set(promises)]
    kept = [pytest.param(store, marks=pytest.mark.slow) if store == slow_on else store for store in kept]
    return pytest.mark.parametrize("target", kept, indirect=True)


def _name(store: object) -> str:
    return str(store.values[0]) if isinstance(store, type(pytest.param())) else str(store)


@dataclass
class Target:
    """One empty root on one kind of store.

    Attributes:
        times: how often each of 16 writers writes in a race: fewer where a request takes milliseconds.
        proxy: in front of the server; None where there is no server.
        lead_to: makes an URL the server's address for this process and those it starts.
    """

    name: str
    root: str
    times: int
    proxy: FaultProxy | None = None
    lead_to: Callable[[str], None] = lambda url: None
    release: Callable[[], Awaitable[None]] = field(init=False)

    @asynccontextmanager
    async def open(self, plan: Plan | None = None, clock: Clock | None = None) -> AsyncIterator[Store]:
        """The store. With `plan`, its requests fail or are delayed, and `release` lets late ones land."""
        clock = clock or QuickClock()
        backend = open_backend(self.root, clock)
        if plan and self.proxy:
            self.proxy.plan, self.release = plan, self._release_proxy
            self.lead_to(self.proxy.served.url)
        elif plan:
            backend = FaultyBackend(backend, plan, clock)
            self.release = backend.release
        store = Store(backend, clock, RandomSource(1))
        try:
            yield store
        finally:
            await store.close()

    def race(self, job: str, key: str, times: int) -> list[str]:
        """16 writers at once, in several processes where the store can be shared."""
        writers = [f"writer{number}" for number in range(16)]
        if self.name != "memory":
            return work_in_processes(self.root, job, key, times, writers, processes=2)

        async def inside() -> list[str]:
            async with self.open() as store:
                return await work(store, job, key, times, writers)

        return asyncio.run(inside())

    async def _release_proxy(self) -> None:
        assert self.proxy is not None
        await asyncio.to_thread(self.proxy.release)


@contextmanager
def _running(name: str) -> Iterator[tuple[Server, FaultProxy]]:
    with SERVERS[name]() as server, fault_proxy(server.url) as proxy:
        yield server, proxy


@pytest.fixture(scope="module")
def running() -> Iterator[Callable[[str], tuple[Server, FaultProxy]]]:
    """Starts a server, with a proxy before it, when the first test asks for it."""
    with ExitStack() as started:
        yield lru_cache(lambda name: started.enter_context(_running(name)))


@pytest.fixture
def target(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    running: Callable[[str], tuple[Server, FaultProxy]],
) -> Target:
    name: str = request.param
    if name in ("memory", "local"):
        return Target(name, f"memory://{uuid.uuid4()}" if name == "memory" else str(tmp_path), times=15)
    server, proxy = running(name)
    for variable, value in server.environment.items():
        monkeypatch.setenv(variable, value)

    def lead_to(url: str) -> None:
        monkeypatch.setenv(server.address, url)

    return Target(name, f"{server.root}/{uuid.uuid4()}", 3 if name == "moto" else 5, proxy, lead_to)
