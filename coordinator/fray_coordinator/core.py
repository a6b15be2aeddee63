"""What every service needs: the store, the records in it, time, chance and the cluster's settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from fray_coordinator.clock import (
    Clock,
    RandomSource,
    SystemClock,
    system_random,
)
from fray_coordinator.errors import BadRecord, RootMismatch, StoreUnavailable
from fray_coordinator.store.opening import open_store
from fray_coordinator.store.records import Records
from fray_coordinator.store.store import Store
from fray_layouts import object_keys
from fray_layouts.errors import FrayError
from fray_layouts.records import LAYOUT_VERSION, ClusterSettings

T = TypeVar("T")
V = TypeVar("V")

MAX_ERROR_CHARACTERS = 500
"""Characters of an error that are kept."""

LOCAL_SETTINGS = ClusterSettings(poll_interval=0.05, pass_interval=1.0, repair_interval=30.0)
"""Where requests cost nothing, everyone may look often."""


@dataclass(frozen=True, slots=True)
class Core:
    """One participant's view of one cluster."""

    store: Store
    records: Records
    clock: Clock
    rng: RandomSource
    settings: ClusterSettings

    @property
    def root(self) -> str:
        return self.store.root

    def now(self) -> float:
        """The storage's clock, seconds since the epoch."""
        return self.store.now()

    def jittered(self, seconds: float) -> float:
        """`seconds`, up to a fifth more or less, so that many participants do not act in step."""
        return seconds * self.rng.uniform(0.8, 1.2)


async def open_core(
    root: str, wanted: ClusterSettings | None = None, clock: Clock | None = None, rng: RandomSource | None = None
) -> Core:
    """Open a cluster by its root URL; a root without `cluster.json` becomes a cluster.

    Args:
        wanted: settings for a root that has none yet.

    Raises:
        RootMismatch: the root has another layout version, or a `cluster.json` that is not ours.
        StoreRefused, StoreUnavailable: as the store says.
    """
    clock = clock or SystemClock()
    rng = rng or system_random()
    store = await open_store(root, clock=clock, rng=rng)
    try:
        return await core_on(store, wanted, clock, rng)
    except BaseException:
        await store.close()
        raise


async def core_on(store: Store, wanted: ClusterSettings | None, clock: Clock, rng: RandomSource) -> Core:
    """A core on a store that is open already."""
    await store.learn_clock()
    records = Records(store, clock, rng)
    settings = await _settings(store, records, wanted, rng)
    return Core(store, records, clock, rng, settings)


async def _settings(
    store: Store, records: Records, wanted: ClusterSettings | None, rng: RandomSource
) -> ClusterSettings:
    template = wanted or (LOCAL_SETTINGS if store.local else ClusterSettings())
    fresh = replace(template, cluster_id=rng.token(), created_at=store.now())
    try:
        update = await records.update(
            object_keys.CLUSTER_KEY, ClusterSettings, lambda found: fresh if found is None else None
        )
    except BadRecord as error:
        raise RootMismatch(f"{store.root} is not a Fray root: {error}") from None
    assert update.stored is not None, "it was found or created"
    found = update.stored.record
    if found.layout != LAYOUT_VERSION:
        raise RootMismatch(
            f"{store.root} has layout version {found.layout}, this Fray writes {LAYOUT_VERSION}; "
            "use a Fray of that version, or another root"
        )
    return found


async def map_concurrently(items: Iterable[T], act: Callable[[T], Awaitable[V]], at_once: int = 16) -> list[V]:
    """`act` on every item, `at_once` at a time, results in order; the first exception ends it."""
    todo = list(items)
    if len(todo) == 1:
        return [await act(todo[0])]
    results: dict[int, V] = {}
    numbered = iter(enumerate(todo))

    async def work() -> None:
        for number, item in numbered:
            results[number] = await act(item)

    workers = [asyncio.ensure_future(work()) for _ in range(min(at_once, len(todo)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
    return [results[number] for number in range(len(todo))]


async def map_noting_problems(
    items: Iterable[T],
    act: Callable[[T], Awaitable[V]],
    problems: dict[str, str],
    name: Callable[[T], str] = str,
    at_once: int = 16,
) -> list[V]:
    """`act` on every item; one that raises is noted in `problems` and skipped, unless the store answers nobody.

    One odd object must not keep the pass from all the others, whatever error it leads to: also one that nobody
    thought of.
    """

    async def guarded(item: T) -> list[V]:
        try:
            return [await act(item)]
        except Exception as error:
            if is_outage(error):
                raise
            problems[name(item)] = describe_error(error)
            return []

    return [result for results in await map_concurrently(items, guarded, at_once) for result in results]


def is_outage(error: Exception) -> bool:
    """Whether the error is that the store answers nobody, and not the trouble of one object."""
    return isinstance(error, StoreUnavailable) and not error.others_answered


def describe_error(error: Exception) -> str:
    """An error in few words, for people: one of Fray's says all by itself, any other is told with its type."""
    text = str(error) if isinstance(error, FrayError) else f"{type(error).__name__}: {error}"
    return text if len(text) <= MAX_ERROR_CHARACTERS else f"{text[: MAX_ERROR_CHARACTERS - 3]}..."
