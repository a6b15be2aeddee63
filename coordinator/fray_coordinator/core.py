"""The context of every service: the store, the records in it, time, random numbers and the cluster's settings."""

from dataclasses import dataclass

from msgspec.structs import replace

from fray_coordinator.clock import Clock, RandomSource, SystemClock, system_random
from fray_coordinator.errors import BadRecord, RootMismatch
from fray_coordinator.store.opening import open_store
from fray_coordinator.store.records import Records
from fray_coordinator.store.store import Store
from fray_layouts.object_keys import CLUSTER_KEY
from fray_layouts.records import LAYOUT_VERSION, ClusterSettings

LOCAL_SETTINGS = ClusterSettings(poll_interval=0.05, pass_interval=1.0, repair_interval=30.0)
"""For stores where requests are free: polls, passes and repairs are frequent."""


@dataclass(frozen=True, slots=True)
class Core:
    """One cluster as one participant has opened it."""

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
        update = await records.update(CLUSTER_KEY, ClusterSettings, lambda found: fresh if found is None else None)
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
