"""A run over one pool: compares records with the provider's list, decides, writes, and only then calls the provider.

It may end at any point, because the written records say what the next run has to do.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from msgspec.structs import replace as changed

from fray_agents.provisioning.cluster_view import ClusterView, present
from fray_agents.provisioning.prices import hourly_cost
from fray_agents.provisioning.provider import MachineRequest, Provider, ProviderError
from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import AgentNotFound
from fray_coordinator.jobs import notifications
from fray_coordinator.protocol.retention import retention_seconds
from fray_coordinator.protocol.scaling.demand import capacity_of, hosts_of
from fray_coordinator.protocol.scaling.machines import (
    CALL_SECONDS,
    asked,
    created,
    observe,
    refused,
    stray_problem,
    to_ask,
    to_delete,
    to_drain,
)
from fray_coordinator.protocol.scaling.planning import confirmed, plan, wanted, withdrawn
from fray_coordinator.protocol.scaling.provisioning import account_of, still_managed
from fray_coordinator.protocol.scaling.view import ListedMachine, PoolView, of_account, with_refusal, without_unread
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import MachineKeys
from fray_layouts.records import MachineRecord, PoolScaling, ProvisioningSpec
from fray_layouts.states import MachineState

CALL_TIMEOUT = 0.75 * CALL_SECONDS
"""Seconds after which a call of a provider is given up: earlier than the protocol's rules assume (`CALL_SECONDS`)."""

T = TypeVar("T")


@dataclass(slots=True)
class PoolRun:
    """A run of the scaler over a pool's machines in one account of a provider.

    Attributes:
        spec: the settings in force there. found: the same with all zones where there may be machines.
        cluster: the cluster as read for this run.
        before: the pool's state after the last run.
        ran_at: the time at which that run ended.
        denied: the provider denied this process a request; another process may have the rights.
    """

    core: Core
    provider: Provider
    cluster: ClusterView
    pool: str
    spec: ProvisioningSpec
    found: ProvisioningSpec
    before: PoolScaling
    ran_at: float
    denied: bool = False
    _view: PoolView = field(init=False)
    _stored: dict[str, Stored[MachineRecord]] = field(default_factory=dict)
    _problem: str = ""
    _problems: dict[str, str] = field(default_factory=dict)
    _scaling: PoolScaling = field(init=False)

    def __post_init__(self) -> None:
        self._scaling = self.before

    async def run(self) -> PoolScaling:
        """Compare and act; the pool's new state, which names each machine or step that failed. The others go on."""
        listed_at, listed = self.core.now(), await self._list()
        self._stored = await self.cluster.machines(self.pool)
        self._view = await self._make_view(listed, listed_at)
        self._update_view()
        steps = {
            "what became of its machines": self._observe,
            "which requests to withdraw": self._withdraw,
            "which machines to make and to release": self._scale,
            "which machines to delete": self._delete_released,
            "which agents to drain": self._drain,
            "which records to forget": self._forget_old,
        }
        await map_noting_problems(steps, lambda name: steps[name](), self._problems, at_once=1)
        unread, strays = self.cluster.unread_machines(self.pool), stray_problem(self._view.machines.values())
        failed = (f"{name}: {problem}" for name, problem in self._problems.items())
        return changed(
            self._scaling,
            zones=dict(self._view.zones),
            problem="; ".join(filter(None, [self._problem, strays, self._scaling.problem, *unread.values(), *failed])),
            accounts=still_managed(self.spec, self.found, None if unread else self._zones_left(listed)),
        )

    async def _observe(self) -> None:
        found = observe(self._view, self.core.now())
        self._problems |= found.problems
        await self._write(found.changed.values())
        self._view = replace(self._view, zones=found.zones)
        await self._each(found.strangers, self._delete, lambda known: known.name)

    async def _withdraw(self) -> None:
        late, zones = withdrawn(self._view, self.core.now())
        await self._write(late.values())
        self._view = replace(self._view, zones=zones)

    async def _each(
        self, items: Iterable[T], act: Callable[[T], Awaitable[object]], name: Callable[[T], str] = str
    ) -> None:
        """Do something with each of these; one that fails is named in the pool's problem."""
        await map_noting_problems(items, act, self._problems, name)

    def _zones_left(self, listed: Sequence[ListedMachine] | None) -> list[str] | None:
        """The zone of each machine that exists or existed; None if the provider could not list its machines."""
        if listed is None:
            return None
        return [*(machine.zone for machine in self._view.machines.values()), *(known.zone for known in listed)]

    async def _scale(self) -> None:
        """Create records for, order and release machines; repeated while zones refuse, to try the next zone at once."""
        for _ in range(len(self.spec.zones) + 1):
            planned = plan(self._view, self.core.now())
            self._scaling = planned.scaling
            await self._write(planned.changed.values())
            for order in planned.orders:
                now = self.core.now()
                names = [MachineKeys.fresh(now, self.core.rng.token()) for _ in range(order.count)]
                await self._write(wanted(self._view, order, names, now))
            if planned.orders:
                self._stored = await self.cluster.machines(self.pool)
                self._update_view()
            while given_up := confirmed(self._view, self.core.now()):  # repeated, as another write may come first
                await self._write(given_up.values())
            zones = self._view.zones
            await self._each(to_ask(self._view, self.core.now()), self._ask, lambda batch: batch[0].name)
            if self._view.zones is zones:
                break

    async def _ask(self, batch: Sequence[MachineRecord]) -> None:
        """Order the machines of one request, if all of their records are still unchanged."""
        asked_at, begun, again = self.core.now(), self.core.clock.boottime(), batch[0].asked_at is not None
        if await self._write([asked(machine, asked_at) for machine in batch]) < len(batch):
            return
        if self.core.clock.boottime() - begun > CALL_SECONDS - CALL_TIMEOUT:
            return  # this process, or its host, was frozen: another scaler may have taken over
        leader, names = batch[0], [machine.name for machine in batch]
        spec = changed(self.spec, machine_type=leader.machine_type, spot=leader.spot)
        request = MachineRequest(self.pool, names, leader.zone, spec, self.core.root, leader.hosts, spec.labels)
        batch_records = [self._view.machines[name] for name in names]
        try:
            operation = await self._call(self.provider.create(request))
        except ProviderError as error:
            text = str(error)
            await self._write([refused(machine, error.kind, text, again) for machine in batch_records])
            zones = with_refusal(self._view.zones, leader.zone, error.kind, text, asked_at, self.core.now())
            self._view = replace(self._view, zones=zones)
        else:
            await self._each(names, partial(self._store_reply, operation, self.core.now()))
            self._update_view()

    async def _store_reply(self, operation: str, now: float, name: str) -> None:
        """Note in a machine's record that the provider accepted the request, also if another scaler has changed it."""
        key, known = MachineKeys.key(self.pool, name), self._stored.get(name)
        noted = partial(created, operation=operation, now=now)
        update = await self.core.records.update(key, MachineRecord, noted, known, one_of_many=True)
        self._keep(name, update.stored)

    async def _delete(self, machine: MachineRecord | ListedMachine) -> None:
        try:
            await self._call(self.provider.delete(machine.name, machine.zone, machine.batch))
        except ProviderError as error:
            self._problem = self._problem or f"{machine.name} cannot be deleted: {error}"
            known = self._view.machines.get(machine.name)
            if known is not None and known.error != str(error):
                await self._write([changed(known, error=str(error))])

    async def _delete_released(self) -> None:
        await self._each(to_delete(self._view), self._delete, lambda machine: machine.name)

    async def _drain(self) -> None:
        async def one(agent: str) -> None:
            try:
                await notifications.drain(self.core, agent)
            except AgentNotFound:  # it has ended meanwhile
                return

        await self._each(to_drain(self._view), one)

    async def _list(self) -> Sequence[ListedMachine] | None:
        try:
            return await self._call(self.provider.list())
        except ProviderError as error:
            self._problem = str(error)
            return None

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            return await _with_timeout(call)
        except ProviderError as error:
            self.denied |= error.kind == "denied"
            raise

    async def _make_view(self, listed: Sequence[ListedMachine] | None, listed_at: float) -> PoolView:
        agents = self.cluster.agents(self.pool)
        spec = self.spec
        return PoolView(
            pool=self.pool,
            spec=spec,
            machines=present(self._stored),
            listed=listed,
            listed_at=listed_at,
            agents=agents,
            silent=self.cluster.silent(self.pool),
            owners=self.cluster.owners(self.pool),
            lacking=self.cluster.lacking(self.pool),
            jobs=await self.cluster.waiting_jobs(self.pool),
            zones=self.before.zones,
            hosts=hosts_of(spec),
            capacity=capacity_of(spec, agents.values()),
            prices={zone: hourly_cost(spec, zone) for zone in spec.zones or [""] if spec.max},
            ran_at=self.ran_at,
        )

    async def _write(self, records: Iterable[MachineRecord]) -> int:
        """Write these records, each on condition that it is unchanged; how many were written. Updates the view."""

        async def one(record: MachineRecord) -> bool:
            key, known = MachineKeys.key(self.pool, record.name), self._stored.get(record.name)
            written = await self.core.records.write(key, MachineRecord, record, known, one_of_many=True)
            self._keep(record.name, written.stored)
            return written.wrote

        wrote = await map_noting_problems(list(records), one, self._problems, lambda record: record.name)
        self._update_view()
        return sum(wrote)

    def _keep(self, name: str, stored: Stored[MachineRecord] | None) -> None:
        if stored is None:
            self._stored.pop(name, None)
        else:
            self._stored[name] = stored

    def _update_view(self) -> None:
        """Update the view with the records as they are now."""
        unread = self.cluster.unread_machines(self.pool)
        seen = replace(self._view, machines=present(self._stored), spec=self.spec)
        here = of_account(without_unread(seen, unread.keys()), account_of(self.spec))
        self._view = replace(here, recorded=self._stored.keys() - here.machines.keys())

    async def _forget_old(self) -> None:
        """Remove the records of machines that have been gone for the retention time."""
        before = self.core.now() - retention_seconds(self.core.settings)
        old = [
            stored
            for stored in self._stored.values()
            if stored.record.state == MachineState.GONE and (stored.record.ended_at or 0.0) < before
        ]

        async def forget(stored: Stored[MachineRecord]) -> None:
            for host in range(stored.record.hosts):
                await self.core.store.delete(MachineKeys.boot_log(self.pool, stored.record.name, host))
            await self.core.store.delete(stored.key, stored.version)

        await self._each(old, forget, lambda stored: stored.record.name)


async def _with_timeout(call: Awaitable[T]) -> T:
    """Await a call of a provider for at most `CALL_TIMEOUT`; every error becomes a ProviderError."""
    try:
        async with asyncio.timeout(CALL_TIMEOUT):
            return await call
    except TimeoutError:
        raise ProviderError("unavailable", f"the provider did not answer within {CALL_TIMEOUT:.0f} s") from None
    except ProviderError:
        raise
    except Exception as error:
        raise ProviderError("unavailable", f"the provider failed: {type(error).__name__}: {error}") from error
