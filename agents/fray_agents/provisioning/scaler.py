"""The scaler: makes and removes the machines of pools, under the lease in `coordinator/scaler.json` or without it.

Two scalers at once do no harm: every write is conditional, and every call of a provider is idempotent by name. So a
process scales the pools of its scope that are not in the holder's scope without the lease.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from fray_agents.provisioning.cluster_view import ClusterView
from fray_agents.provisioning.pool_run import PoolRun
from fray_agents.provisioning.provider import Provider, ProviderError
from fray_agents.provisioning.provider_opening import open_provider
from fray_coordinator.concurrency import decide_each, map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import StoreError, describe_error, is_outage
from fray_coordinator.jobs.pools import read_pools
from fray_coordinator.protocol.role_lease import UNREADABLE_HOLDER
from fray_coordinator.protocol.scaling.provisioning import (
    Account,
    ScalingScope,
    account_of,
    account_of_machine,
    accounts,
    allowed_accounts,
    difference,
    in_force,
    left_out,
    with_others,
)
from fray_coordinator.protocol.scaling.shares import hourly_cost
from fray_coordinator.role_election import RoleElection
from fray_layouts.bounds import MAX_SAFE_INTEGER
from fray_layouts.object_keys import CoordinatorKeys, PoolKeys
from fray_layouts.records import AgentPoolRecord, PoolScaling, ProvisioningSpec, ScalerRecord
from fray_layouts.states import MachineState

log = logging.getLogger("fray")

OpenProvider = Callable[[Core, str, ProvisioningSpec], Awaitable[Provider]]
"""Opens the provider of a pool."""

STEP_BACK_SECONDS = 3600.0
"""Seconds for which a process that nobody asked to scale leaves a pool whose provider has denied it something."""


@dataclass(slots=True)
class Scaler:
    """Scales the pools of its scope: all of them while it has the role, otherwise those that the holder does not scale.

    Attributes:
        identity: an agent's id, or "<what>-<token>" of another process.
        scope: the pools that this process may scale.
        open_provider: tests replace it.
        steps_back: nobody asked this process to scale: if it cannot open a pool's provider, or is denied something, it
            leaves that pool to other processes for a while, and the role if it has no other pool.
    """

    core: Core
    identity: str
    scope: ScalingScope
    open_provider: OpenProvider = open_provider
    steps_back: bool = False
    _role: RoleElection[ScalerRecord] = field(init=False)
    _cluster: ClusterView = field(init=False)
    _providers: dict[tuple[str, Account], tuple[ProvisioningSpec, Provider]] = field(default_factory=dict)
    _differences: dict[str, str] = field(default_factory=dict)
    _denied: set[str] = field(default_factory=set)
    _not_before: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._role = RoleElection(
            self.core,
            CoordinatorKeys.scaler,
            ScalerRecord,
            self.identity,
            lambda lease: self.core.settings.pass_interval,
        )
        self._cluster = ClusterView(self.core)

    async def run(self) -> None:
        """Scale whenever it may be due, until this is cancelled; then resign from the role."""
        try:
            while True:
                with suppress(StoreError):  # a refusal or an outage may pass
                    await self.run_if_elected()
                await self.core.clock.sleep(self.core.jittered(self.core.settings.pass_interval))
        finally:
            with suppress(StoreError):  # then other processes take the role as soon as the lease is old enough
                await self.resign()
            await self.close()

    async def run_if_elected(self) -> bool:
        """Run once, over all pools if this process has the role, which it takes if there is no holder that works.

        Returns whether it ran over any pool.
        """
        role = self._role
        await role.read()
        if self.has_stepped_back:
            await self.resign()
            return False
        mine = replace(role.record, holder=self.identity, scope=sorted(self._among(role.record.pools)))
        if role.is_won or (role.may_take() and await role.take(mine)):
            ran = await role.renew_during(self.run_once(), _renewed) is not None
        else:
            ran = await self._run_over_left_out()
        if self.steps_back:
            self._not_before |= dict.fromkeys(self._denied, self.core.clock.boottime() + STEP_BACK_SECONDS)
        return ran

    @property
    def has_stepped_back(self) -> bool:
        """Whether it leaves pools to other processes now, and no other pool of its scope is scaled at all."""
        scaled = self._role.record.pools.keys()
        return bool(self._left_to_others()) and not self._among(scaled) & scaled

    def _among(self, known: Iterable[str]) -> frozenset[str]:
        """The pools of the scope that it does not leave to other processes at present. known: as for the scope."""
        return self.scope.among(known) - self._left_to_others()

    def _left_to_others(self) -> set[str]:
        now = self.core.clock.boottime()
        return {pool for pool, until in self._not_before.items() if now < until}

    async def _run_over_left_out(self) -> bool:
        """Scale the pools that neither the role's holder nor another process scales; returns whether there were any."""
        record = self._role.record
        if record.holder == UNREADABLE_HOLDER:  # it is not known which pools the holder scales
            return False
        scaled = {pool: scaling.ran_at for pool, scaling in record.pools.items()}
        since = self.core.now() - self.core.settings.pass_interval / 2
        if not (pools := self._among(scaled) & left_out(self.scope, scaled, frozenset(record.scope), since)):
            return False
        await self.run_once(pools)
        return True

    async def run_once(self, only: Collection[str] | None = None) -> dict[str, PoolScaling]:
        """Scale the pools of the scope once, whoever holds the lease. Returns the new state of each pool.

        only: these of them.
        """
        if self._role.lease is None:
            await self._role.read()
        last = self._role.record
        self._denied = set()
        problems: dict[str, str] = {}
        pools = await read_pools(self.core, problems)
        await self._cluster.refresh()
        known = self._cluster.known_machines()
        named_in_problems = {pool for key in problems if (pool := PoolKeys.parse_record(key))}
        mine = self._among(pools.keys() | last.pools.keys() | known.keys() | named_in_problems)
        scope, mine = sorted(mine), mine if only is None else mine & set(only)
        unread = {p: text for key, text in problems.items() if (p := PoolKeys.parse_record(key)) in mine}

        def may_scale(pool: str) -> tuple[str, bool]:
            return pool, self._may_scale(pool, _settings_of(pools.get(pool)))

        looked_at = {pool for pool, may in decide_each(sorted(mine - unread.keys()), may_scale, unread) if may}

        def places_of(pool: str) -> tuple[str, dict[Account, ProvisioningSpec]]:
            left = last.pools.get(pool, PoolScaling()).accounts
            found = accounts(_settings_of(pools.get(pool)), left, known.get(pool, ()))
            return pool, allowed_accounts(self.scope, pool, found)

        places = dict(decide_each(sorted(looked_at), places_of, unread))
        if only is None:
            await self._close_all_but({(pool, account) for pool, found in places.items() for account in found})

        async def one(pool: str) -> tuple[str, PoolScaling]:
            states = [
                await self._run_in_account(pool, spec, in_force(_settings_of(pools.get(pool)), spec), last)
                for spec in places[pool].values()
            ]
            return pool, _merged(states)

        found = dict(await map_noting_problems(sorted(pool for pool, where in places.items() if where), one, unread))
        found |= {pool: replace(last.pools.get(pool, PoolScaling()), problem=text) for pool, text in unread.items()}
        ended = self.core.now()
        found = {pool: replace(scaling, ran_at=ended) for pool, scaling in found.items()}

        def with_results(now: ScalerRecord | None) -> ScalerRecord:
            now = now or ScalerRecord()
            merged = with_others(found, now.pools, last.pools, looked_at | unread.keys())
            renewed = replace(_renewed(now), scope=scope) if now.holder == self.identity else now
            return replace(renewed, pools=merged)

        await self._role.update(with_results)
        return found

    def _may_scale(self, pool: str, said: ProvisioningSpec | None) -> bool:
        """Whether the pool's record says what the user's file says; says once on the log if it does not."""
        why = difference(self.scope, pool, said)
        if why and self._differences.get(pool) != why:
            log.warning(
                "pool %s is not scaled by this process: it is in fray.yaml, but %s; `fray up` writes the file's, and "
                "`fray scale %s` accepts the cluster's",
                pool,
                why,
                pool,
            )
        self._differences[pool] = why
        return not why

    async def resign(self) -> None:
        """Give up the role, so that another process need not wait until the lease expires."""
        await self._role.resign()

    async def close(self) -> None:
        """Release the connections to providers."""
        await self._close_all_but(())

    async def _run_in_account(
        self, pool: str, found: ProvisioningSpec, spec: ProvisioningSpec, last: ScalerRecord
    ) -> PoolScaling:
        """Scale a pool in one account; a failure there affects nothing else."""
        account = account_of(spec)
        before = (last.pools.get(pool) if spec.max else None) or PoolScaling()
        try:
            provider = await self._provider(pool, found)
            ran_at = last.pools.get(pool, PoolScaling()).ran_at
            run = PoolRun(self.core, provider, self._cluster, pool, spec, found, before, ran_at)
            scaling = await run.run()
            if run.denied:
                self._denied.add(pool)
            return scaling
        except ProviderError as error:  # the provider cannot be opened
            self._denied.add(pool)
            problem = str(error)
        except Exception as error:
            if is_outage(error):
                raise
            problem = describe_error(error)
        known = self._cluster.known_machines().get(pool, ())
        present = [m for m in known if m.state != MachineState.GONE and account_of_machine(m) == account]
        return replace(
            before, machines=len(present), hourly_cost=hourly_cost(present), problem=problem, accounts=[found]
        )

    async def _provider(self, pool: str, spec: ProvisioningSpec) -> Provider:
        key = pool, account_of(spec)
        known = self._providers.get(key)
        if known is not None and known[0] == spec:
            return known[1]
        if known is not None:
            del self._providers[key]
            await _close(known[1])
        _, opened = self._providers[key] = spec, await self.open_provider(self.core, pool, spec)
        return opened

    async def _close_all_but(self, used: Collection[tuple[str, Account]]) -> None:
        for key in self._providers.keys() - used:
            _, provider = self._providers.pop(key)
            await _close(provider)


async def _close(provider: Provider) -> None:
    """Release a provider's connections. If that fails, nothing of a pool depends on it."""
    try:
        await provider.close()
    except Exception as error:
        log.warning("a provider's connections could not be closed: %s", describe_error(error))


def _settings_of(record: AgentPoolRecord | None) -> ProvisioningSpec | None:
    return record.provisioning if record is not None else None


def _merged(states: Sequence[PoolScaling]) -> PoolScaling:
    """The state of a pool, combined from those in all its accounts; the last account is the one in use."""
    return replace(
        states[-1],
        machines=sum(state.machines for state in states),
        hourly_cost=sum(state.hourly_cost for state in states),
        problem="; ".join(dict.fromkeys(state.problem for state in states if state.problem)),
        accounts=[spec for state in states for spec in state.accounts],
    )


def _renewed(now: ScalerRecord) -> ScalerRecord:
    return replace(now, progress=(now.progress + 1) % MAX_SAFE_INTEGER)
