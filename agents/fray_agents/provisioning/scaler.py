"""The scaler: looks at every pool that has a provider, under the lease in `coordinator/scaler.json` or without it.

Two at once do no harm: every write is conditional, and every call of a provider is idempotent by name.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from fray_agents.provisioning.cluster_view import ClusterView
from fray_agents.provisioning.look import PoolLook
from fray_agents.provisioning.opening import open_provider
from fray_agents.provisioning.provider import Provider, ProviderError
from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.errors import describe_error, is_outage
from fray_coordinator.jobs.machines import read_pools
from fray_coordinator.protocol import role_lease
from fray_coordinator.store.records import Stored
from fray_layouts.bounds import MAX_SAFE_INTEGER
from fray_layouts.object_keys import CoordinatorKeys
from fray_layouts.records import PoolScaling, ProvisioningSpec, ScalerRecord

OpenProvider = Callable[[Core, str, ProvisioningSpec], Awaitable[Provider]]
"""Opens the provider of a pool."""


@dataclass(slots=True)
class Scaler:
    """Looks at the pools, whenever it holds the lease.

    Attributes:
        identity: agent id, or "<what>-<token>" of another process.
        open_provider: for tests.
    """

    core: Core
    identity: str
    open_provider: OpenProvider = open_provider
    lease: Stored[ScalerRecord] | None = None
    _cluster: ClusterView = field(init=False)
    _providers: dict[str, tuple[ProvisioningSpec, Provider]] = field(default_factory=dict)
    _age: float = 0.0
    _read_at: float | None = None

    def __post_init__(self) -> None:
        self._cluster = ClusterView(self.core)

    @property
    def holds_lease(self) -> bool:
        return self.lease is not None and self.lease.record.holder == self.identity

    async def try_look(self) -> bool:
        """Take the lease if it is free or stale, and look if it is ours; whether it looked."""
        await self._read_lease()
        interval = self.core.settings.pass_interval
        if not self.holds_lease:
            held = self.lease.record if self.lease is not None else None
            if not role_lease.may_take(held, self._age, interval):
                return False
            taken = replace(held or ScalerRecord(), holder=self.identity)
            written = await self.core.records.write(CoordinatorKeys.scaler, ScalerRecord, taken, self.lease)
            self._set_lease(written.stored)
            if not written.wrote:
                return False
        await self.look()
        return True

    async def look(self) -> dict[str, PoolScaling]:
        """Look at all pools once, whoever holds the lease; each pool as it is then."""
        if self.lease is None:
            await self._read_lease()
        last = self.lease.record if self.lease is not None else ScalerRecord()
        problems: dict[str, str] = {}
        pools = await read_pools(self.core, problems)
        specs = {pool: r.provisioning for pool, r in pools.items() if r.provisioning is not None}
        await self._close_all_but(specs)
        await self._cluster.refresh()

        async def one(pool: str) -> tuple[str, PoolScaling]:
            return pool, await self._look_at(pool, specs[pool], last)

        found = dict(await map_concurrently(sorted(specs), one))
        ended = self.core.now()

        def told(now: ScalerRecord | None) -> ScalerRecord:
            now = now or ScalerRecord()
            progress = now.progress + 1 if now.holder == self.identity else now.progress
            return replace(now, progress=progress % MAX_SAFE_INTEGER, looked_at=ended, pools=found)

        update = await self.core.records.update(CoordinatorKeys.scaler, ScalerRecord, told, known=self.lease)
        self._set_lease(update.stored)
        return found

    async def resign(self) -> None:
        """Give the lease up, so that another need not wait for it to age."""
        if self.holds_lease:
            update = await self.core.records.change(
                CoordinatorKeys.scaler,
                ScalerRecord,
                lambda now: replace(now, holder="") if now.holder == self.identity else None,
                known=self.lease,
            )
            self._set_lease(update.stored)

    async def close(self) -> None:
        """Release the connections to providers."""
        await self._close_all_but({})

    async def _look_at(self, pool: str, spec: ProvisioningSpec, last: ScalerRecord) -> PoolScaling:
        """One pool's look; what goes wrong there concerns that pool only."""
        before = last.pools.get(pool) or PoolScaling()
        try:
            provider = await self._provider(pool, spec)
            return await PoolLook(self.core, provider, self._cluster, pool, spec, before, last.looked_at).run()
        except ProviderError as error:
            return replace(before, problem=str(error))
        except Exception as error:
            if is_outage(error):
                raise
            return replace(before, problem=describe_error(error))

    async def _provider(self, pool: str, spec: ProvisioningSpec) -> Provider:
        known = self._providers.get(pool)
        if known is None:
            known = self._providers[pool] = spec, await self.open_provider(self.core, pool, spec)
        return known[1]

    async def _close_all_but(self, specs: dict[str, ProvisioningSpec]) -> None:
        for pool, (spec, provider) in list(self._providers.items()):
            if specs.get(pool) != spec:
                del self._providers[pool]
                await provider.close()

    async def _read_lease(self) -> None:
        records, clock, before = self.core.records, self.core.clock, self.lease
        gap = None if self._read_at is None else clock.boottime() - self._read_at
        key = CoordinatorKeys.scaler
        self.lease = await (records.reread(before) if before else records.read(key, ScalerRecord))
        self._read_at = clock.boottime()
        still = bool(before and self.lease and role_lease.is_unchanged(before.record, self.lease.record))
        self._age = role_lease.lease_age(self._age, still, gap, self.core.settings.pass_interval)

    def _set_lease(self, lease: Stored[ScalerRecord] | None) -> None:
        self.lease, self._age, self._read_at = lease, 0.0, self.core.clock.boottime()
