"""The scaler: looks at every pool that has a provider, under the lease in `coordinator/scaler.json` or without it.

Two at once do no harm: every write is conditional, and every call of a provider is idempotent by name.
"""

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from fray_agents.provisioning.cluster_view import ClusterView
from fray_agents.provisioning.look import PoolLook
from fray_agents.provisioning.opening import open_provider
from fray_agents.provisioning.provider import Provider, ProviderError
from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreError, describe_error, is_outage
from fray_coordinator.jobs.machines import read_pools
from fray_coordinator.protocol.scaling.provisioning import everywhere, in_force
from fray_coordinator.role_election import RoleElection
from fray_layouts.bounds import MAX_SAFE_INTEGER
from fray_layouts.object_keys import CoordinatorKeys, PoolKeys
from fray_layouts.records import PoolScaling, ProvisioningSpec, ScalerRecord

OpenProvider = Callable[[Core, str, ProvisioningSpec], Awaitable[Provider]]
"""Opens the provider of a pool."""

STEP_BACK_SECONDS = 3600.0
"""For so long a process that nobody asked to scale does not try again, after that was in vain for a pool."""


@dataclass(slots=True)
class Scaler:
    """Looks at the pools, whenever it has the role.

    Attributes:
        identity: agent id, or "<what>-<token>" of another process.
        open_provider: for tests.
        steps_back: nobody asked this process to scale: it leaves the role to others for a while, where it cannot open
            a provider, or is denied something.
    """

    core: Core
    identity: str
    open_provider: OpenProvider = open_provider
    steps_back: bool = False
    _role: RoleElection[ScalerRecord] = field(init=False)
    _cluster: ClusterView = field(init=False)
    _providers: dict[str, tuple[ProvisioningSpec, Provider]] = field(default_factory=dict)
    _denied: bool = False
    _not_before: float = 0.0

    def __post_init__(self) -> None:
        self._role = RoleElection(self.core, CoordinatorKeys.scaler, ScalerRecord, self.identity)
        self._cluster = ClusterView(self.core)

    async def run(self) -> None:
        """Look whenever it may be due, until this is cancelled; then the role is given up."""
        try:
            while True:
                with suppress(StoreError):  # rights and servers come back
                    await self.try_look()
                await self.core.clock.sleep(self.core.jittered(self.core.settings.pass_interval))
        finally:
            with suppress(StoreError):
                await self.resign()
            await self.close()

    async def try_look(self) -> bool:
        """Take the role if it is free or its holder is silent, and look if it is this process's; whether it looked."""
        clock, role = self.core.clock, self._role
        if clock.boottime() < self._not_before:
            return False
        await role.look()
        if not role.is_won and not (role.may_take() and await role.take(replace(role.record, holder=self.identity))):
            return False
        looked = await role.renew_during(self.look(), _renewed) is not None
        if self.steps_back and self._denied:
            self._not_before = clock.boottime() + STEP_BACK_SECONDS
            await self.resign()
        return looked

    async def look(self) -> dict[str, PoolScaling]:
        """Look at all pools once, whoever holds the lease; each pool as it is then."""
        if self._role.lease is None:
            await self._role.look()
        last = self._role.record
        self._denied = False
        problems: dict[str, str] = {}
        pools = await read_pools(self.core, problems)
        unread = {pool: text for key, text in problems.items() if (pool := PoolKeys.parse_record(key))}
        said = {pool: record.provisioning for pool, record in pools.items()}
        said |= dict.fromkeys(last.pools.keys() - pools.keys() - unread.keys())
        ruled = {pool: in_force(wanted, last.pools.get(pool, PoolScaling())) for pool, wanted in said.items()}
        specs = {pool: spec for pool, spec in ruled.items() if spec is not None}
        await self._close_all_but(specs)
        await self._cluster.refresh()

        async def one(pool: str) -> tuple[str, PoolScaling]:
            return pool, await self._look_at(pool, specs[pool], last)

        found = dict(await map_concurrently(sorted(specs), one))
        found |= {pool: replace(last.pools.get(pool, PoolScaling()), problem=text) for pool, text in unread.items()}
        ended = self.core.now()

        def told(now: ScalerRecord | None) -> ScalerRecord:
            now = now or ScalerRecord()
            return replace(_renewed(now) if now.holder == self.identity else now, looked_at=ended, pools=found)

        await self._role.update(told)
        return found

    async def resign(self) -> None:
        """Give the role up, so that another need not wait for the lease to age."""
        await self._role.resign()

    async def close(self) -> None:
        """Release the connections to providers."""
        await self._close_all_but(())

    async def _look_at(self, pool: str, spec: ProvisioningSpec, last: ScalerRecord) -> PoolScaling:
        """One pool's look; what goes wrong there concerns that pool only."""
        before = last.pools.get(pool) or PoolScaling()
        with_all_zones = everywhere(spec, before)
        try:
            provider = await self._provider(pool, with_all_zones)
            look = PoolLook(self.core, provider, self._cluster, pool, spec, before, last.looked_at)
            scaling = await look.run()
            self._denied |= look.denied
            return scaling
        except ProviderError as error:  # it cannot be opened
            self._denied = True
            return replace(before, problem=str(error), provisioning=with_all_zones)
        except Exception as error:
            if is_outage(error):
                raise
            return replace(before, problem=describe_error(error), provisioning=with_all_zones)

    async def _provider(self, pool: str, spec: ProvisioningSpec) -> Provider:
        known = self._providers.get(pool)
        if known is not None and known[0] == spec:
            return known[1]
        if known is not None:
            del self._providers[pool]
            await known[1].close()
        _, opened = self._providers[pool] = spec, await self.open_provider(self.core, pool, spec)
        return opened

    async def _close_all_but(self, pools: Collection[str]) -> None:
        for pool in self._providers.keys() - pools:
            _, provider = self._providers.pop(pool)
            await provider.close()


def _renewed(now: ScalerRecord) -> ScalerRecord:
    return replace(now, progress=(now.progress + 1) % MAX_SAFE_INTEGER)
