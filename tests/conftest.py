"""What every test may rely on in its process, and coroutine tests in virtual time."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Iterator, Mapping

import pytest
from hypothesis import HealthCheck, settings

from fray_coordinator.queue import held_segment
from tests.support import left_behind
from tests.support.virtual import Cluster, VirtualLoop

pytest.register_assert_rewrite("tests.behaviour")  # modules of tests that others import

# A shell without job control starts background commands with SIGINT ignored, and children inherit that: the tests that
# interrupt commands would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How many examples are drawn: a few or many, the same each time (`fixed`, `long`), or very many new ones (`fresh`).
USUAL = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy

settings.register_profile("fixed", USUAL, derandomize=True, max_examples=15, database=None)
settings.register_profile("long", USUAL, derandomize=True, max_examples=1_000, database=None)
settings.register_profile("fresh", USUAL, max_examples=5_000, print_blob=True)
settings.load_profile("fixed")


def pytest_collection_finish() -> None:
    """The thousands of collected tests are there to stay: no collection of garbage looks at them again."""
    gc.collect()
    gc.freeze()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Function
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of a coroutine test: virtual time for those that have the fixture `virtual_time`."""
    if "virtual_time" in item.fixturenames:
        return {"virtual": VirtualLoop}
    return {"real": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that a test began waits on in its process; items that it took and lost are out for itself only."""
    monkeypatch.setattr(held_segment._of_this_process, "value", held_segment.PoisonIsolation())
    with left_behind.nothing_left(left_behind.waits), left_behind.ends_what_it_starts():
        yield


@pytest.fixture(scope="module", autouse=True)
def _module_leaves_nothing_behind() -> Iterator[None]:
    """What the fixtures of a module started ends with it."""
    with left_behind.nothing_left(left_behind.services), left_behind.ends_what_it_starts():
        yield


@pytest.fixture
def virtual_time() -> None:
    """A coroutine test that has this, as by `cluster`, runs in virtual time."""


@pytest.fixture
def cluster(virtual_time: None) -> Cluster:
    """An empty cluster in memory and in virtual time; set its `settings` before the first `core()`."""
    return Cluster()
