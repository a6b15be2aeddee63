"""The context of every service: the store, the records in it, time, random numbers and the cluster's settings."""

from dataclasses import dataclass

from msgspec.structs import replace

from fray_coordinator.backoff import JITTER
from fray_coordinator.clock import Clock, RandomSource, SystemClock, system_random
from fray_coordinator.errors import BadRecord, RootMismatch
from fray_coordinator.protocol.cluster_identity import identity_of, why_not_here
from fray_coordinator.store.opening import open_backend
from fray_coordinator.store.records import Records
from fray_coordinator.store.store import Store
from fray_layouts.object_keys import CLUSTER_KEY
from fray_layouts.records import LAYOUT_VERSION, ClusterSettings

LOCAL_SETTINGS = ClusterSettings(poll_interval=0.05, pass_interval=1.0, repair_interval=30.0)
"""For stores where requests cost nothing: polls, passes and repairs are frequent."""

KNOWN_ROOT_PATIENCE, KNOWN_ROOT_PAUSE = 60.0, 1.0
"""Seconds for which a job waits for its own cluster, as for the storage's answers, and between two looks."""


@dataclass(frozen=True, slots=True)
class Core:
    """A cluster as one participant has opened it."""

    store: Store
    records: Records
    clock: Clock
    rng: RandomSource
    settings: ClusterSettings

    @property
    def root(self) -> str:
        return self.store.root

    @property
    def identity(self) -> str:
        """The cluster's identity, from which names and keys outside the root derive."""
        return identity_of(self.settings)

    def now(self) -> float:
        """The storage's clock, seconds since the epoch."""
        return self.store.now()

    def jittered(self, seconds: float) -> float:
        """`seconds`, up to a fifth more or less (`JITTER`)."""
        return seconds * self.rng.uniform(*JITTER)


async def open_core(
    root: str,
    wanted: ClusterSettings | None = None,
    create: bool = True,
    anywhere: bool = False,
) -> Core:
    """Open a cluster by its root URL: one read, of `cluster.json`.

    Args:
        wanted: settings for a root that has none yet.
        create: whether a root without `cluster.json` becomes a cluster; otherwise it is refused.
        anywhere: also open the copy of a cluster, to adopt it.

    Raises:
        RootMismatch: the root has another layout version, a `cluster.json` that is not ours, or none; or it is a copy.
        StoreRefused, StoreUnavailable: the store refuses requests, or does not answer.
    """
    clock, rng = SystemClock(), system_random()
    store = Store(open_backend(root, clock), clock, rng)
    try:
        return await core_on(store, wanted, clock, rng, create, anywhere)
    except BaseException:
        await store.close()
        raise


async def open_known_core(root: str) -> Core:
    """Open a cluster that is known to be at the root, because it runs this job.

    To its jobs another cluster there, or none, is an outage, as it is to the agents: they wait for it, and make none.

    Raises:
        RootMismatch: it was not there for a minute; otherwise as `open_core`.
    """
    clock = SystemClock()
    until = clock.boottime() + KNOWN_ROOT_PATIENCE
    while True:
        try:
            return await open_core(root, create=False)
        except RootMismatch:
            if clock.boottime() >= until:
                raise
        await clock.sleep(KNOWN_ROOT_PAUSE)


async def core_on(
    store: Store,
    wanted: ClusterSettings | None,
    clock: Clock,
    rng: RandomSource,
    create: bool = True,
    anywhere: bool = False,
) -> Core:
    """Make a core on a store that is already open; its first answer tells the storage's clock."""
    records = Records(store, clock, rng)
    cluster_id = rng.token()

    def fresh(found: ClusterSettings | None) -> ClusterSettings | None:
        if found is not None or not create:
            return None
        template = wanted or (LOCAL_SETTINGS if store.local else ClusterSettings())
        return replace(template, cluster_id=cluster_id, addresses=[store.address], created_at=store.now())

    try:
        settings = (await records.update(CLUSTER_KEY, ClusterSettings, fresh)).stored
    except BadRecord as error:
        raise RootMismatch(f"{store.root} is not a Fray root: {error}") from None
    if settings is None:
        raise RootMismatch(
            f"there is no cluster at {store.root}; give the right root, or create it: fray init {store.root}"
        )
    if (layout := settings.record.layout) != LAYOUT_VERSION:
        raise RootMismatch(
            f"{store.root} has layout version {layout}, this Fray writes {LAYOUT_VERSION}; "
            "use a Fray of that version, or another root"
        )
    if not anywhere and (why := why_not_here(settings.record, store.address, store.root)):
        raise RootMismatch(why)
    if not anywhere:
        store.watch_root(settings.record, settings.version)
    await store.learn_clock()
    return Core(store, records, clock, rng, settings.record)
