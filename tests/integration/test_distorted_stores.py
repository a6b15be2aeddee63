"""A storage server whose answers are wrong: each wrong answer is noticed, and a right one later is taken."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from fray_coordinator.clock import RandomSource, SystemClock
from fray_coordinator.errors import StoreUnavailable
from fray_coordinator.store.buckets import CLOCK_ANSWERS
from fray_coordinator.store.interface import ANY
from fray_coordinator.store.opening import open_backend
from fray_coordinator.store.probe import unfitness
from fray_coordinator.store.store import Store
from tests.support.distortions import ClockOff, Distortion, NoContinuation, OneVersion, ShortPages, Shuffled
from tests.support.fault_proxy import FaultProxy, fault_proxy
from tests.support.servers import Server, gcs_emulator, moto

T = TypeVar("T")

KEYS = [f"jobs/{number:02}" for number in range(10)]
HOUR = 3600.0


@pytest.fixture(scope="module", params=["s3", "gs"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[FaultProxy, Server]]:
    with {"s3": moto, "gs": gcs_emulator}[request.param]() as server, fault_proxy(server.url) as proxy:
        yield proxy, server


@pytest.fixture
def distorted(served: tuple[FaultProxy, Server], monkeypatch: pytest.MonkeyPatch) -> tuple[FaultProxy, str]:
    """The proxy before a server with ten objects, and their root."""
    proxy, server = served
    for variable, value in {**server.environment, server.address: proxy.served.url}.items():
        monkeypatch.setenv(variable, value)
    proxy.distortion = Distortion()
    root = f"{server.root}/root"
    asked(root, _fill)
    return proxy, root


async def _fill(store: Store) -> None:
    for key in KEYS:
        await store.put(key, b"{}", ANY)


def asked(root: str, act: Callable[[Store], Awaitable[T]], patience: float = 0.0) -> T:
    async def main() -> T:
        clock = SystemClock()
        store = Store(open_backend(root, clock), clock, RandomSource(1), patience)
        try:
            return await act(store)
        finally:
            await store.close()

    return asyncio.run(main())


async def _listed(store: Store) -> list[str]:
    return [row.key for row in await store.list("jobs/", versions=True)]


@pytest.mark.parametrize("distortion", [Shuffled(random.Random(1)), NoContinuation()])
def test_a_listing_without_order_or_end_is_no_answer(distorted: tuple[FaultProxy, str], distortion: Distortion) -> None:
    proxy, root = distorted
    proxy.distortion = distortion
    with pytest.raises(StoreUnavailable):
        asked(root, _listed)
    proxy.distortion = Distortion()
    assert asked(root, _listed) == KEYS


def test_short_pages_are_put_together(distorted: tuple[FaultProxy, str]) -> None:
    proxy, root = distorted
    proxy.distortion = ShortPages(3)
    assert asked(root, _listed) == KEYS
    some = asked(root, lambda store: store.list("jobs/", KEYS[1], 5))
    assert [row.key for row in some] == KEYS[2:7]


@pytest.mark.parametrize("hours", [-5.0, 5.0])
def test_a_clock_that_jumps_is_followed_with_the_times_of_objects(
    distorted: tuple[FaultProxy, str], hours: float
) -> None:
    proxy, root = distorted

    async def jump(store: Store) -> tuple[float, float]:
        await store.learn_clock()
        before = store.now()
        proxy.distortion = ClockOff(hours * HOUR)
        for _ in range(CLOCK_ANSWERS):
            found = await store.get(KEYS[0])
        assert found is not None
        return store.now() - before, store.now() - found.updated

    moved, age = asked(root, jump)
    assert moved == pytest.approx(hours * HOUR, abs=60)
    assert age == pytest.approx(0, abs=60)


@pytest.mark.parametrize("served", ["s3"], indirect=True)
def test_nobody_joins_a_store_that_gives_every_object_the_same_version(distorted: tuple[FaultProxy, str]) -> None:
    proxy, root = distorted
    proxy.distortion = OneVersion()
    assert "a write on the version that the storage had just given was rejected" in {
        finding.what for finding in asyncio.run(unfitness(root))
    }
    proxy.distortion = Distortion()
    assert asyncio.run(unfitness(root)) == []
