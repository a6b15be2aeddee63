"""Looks of the scaler at pools whose records people change: old machines are removed before they are forgotten."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from fray_agents.provisioning.cluster_view import AFTERMATH_SECONDS
from fray_agents.provisioning.provider import MachineRequest, ProviderError
from fray_agents.provisioning.scaler import Scaler
from fray_coordinator.core import Core
from fray_coordinator.protocol.scaling.machines import STRAY_SECONDS
from fray_coordinator.store.interface import ANY
from fray_layouts.object_keys import MachineKeys, PoolKeys
from fray_layouts.records import AgentPoolRecord, ProvisioningSpec
from fray_layouts.states import MachineState
from tests.support.memory_provider import MemoryProvider
from tests.support.virtual import Cluster
from tests.unit.test_scaler import HOST, POOL, SCOPE, SOUND, machines, with_jobs, with_pool

SPEC_ELSEWHERE = ProvisioningSpec(provider="cloud_run", zones=["us-central1"], capacity=HOST)


class Deaf(MemoryProvider):
    """Makes machines, but does not list them."""

    def __init__(self) -> None:
        super().__init__()
        self.made = asyncio.Event()

    async def create(self, request: MachineRequest) -> str:
        await super().create(request)
        self.made.set()
        await asyncio.Event().wait()
        return ""


async def set_pool(core: Core, spec: ProvisioningSpec | None) -> None:
    """Change the pool's record as people do by hand."""
    await core.records.update(PoolKeys.record(POOL), AgentPoolRecord, lambda now: AgentPoolRecord(provisioning=spec))


async def test_machines_of_a_pool_that_may_have_none_any_more_are_removed(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core)
    await with_jobs(core, 2)
    scaler = Scaler(core, "one", SCOPE, provider.open)
    await scaler.run_once()
    assert len(provider.machines) == 2
    await set_pool(core, None)
    for _ in range(4):
        await Scaler(core, "another", SCOPE, provider.open).run_once()
        await asyncio.sleep(60)
    assert provider.machines == {}
    assert {m.state for m in await machines(cluster, core)} == {MachineState.GONE}
    await asyncio.sleep(AFTERMATH_SECONDS)
    await Scaler(core, "another", SCOPE, provider.open).run_once()
    assert await Scaler(core, "another", SCOPE, provider.open).run_once() == {}, "nobody looks after it any more"


async def test_machines_of_a_provider_that_a_pool_had_go_before_others_come(cluster: Cluster) -> None:
    core, old, new = await cluster.core(), MemoryProvider(), MemoryProvider()

    async def opened(core: Core, pool: str, spec: ProvisioningSpec) -> MemoryProvider:
        return old if spec.provider == "command" else new

    await with_pool(core)
    await with_jobs(core, 1)
    scaler = Scaler(core, "one", SCOPE, opened)
    await scaler.run_once()
    await set_pool(core, SPEC_ELSEWHERE)
    await scaler.run_once()
    assert new.asked == [], "it may have one, and that is still there"
    for _ in range(4):
        await asyncio.sleep(60)
        await scaler.run_once()
    assert (len(old.machines), len(new.machines)) == (0, 1)


@pytest.mark.parametrize("says", [SPEC_ELSEWHERE, None])
async def test_a_machine_that_a_slow_run_makes_at_the_pools_old_place_is_removed_there(
    cluster: Cluster, says: ProvisioningSpec | None
) -> None:
    """The run read the pool before the change, and is killed before it can record the machine."""
    core, old, new = await cluster.core(), Deaf(), MemoryProvider()

    async def opened(core: Core, pool: str, spec: ProvisioningSpec) -> MemoryProvider:
        return old if spec.provider == "command" else new

    await with_pool(core)
    await with_jobs(core, 1)
    slow, quick = Scaler(core, "slow", SCOPE, opened), Scaler(core, "quick", SCOPE, opened)
    old.slow = 50.0
    late = asyncio.create_task(slow.run_once())
    await asyncio.sleep(1)
    old.slow = 0.0
    await set_pool(core, says)
    for _ in range(3):
        await quick.run_once()
    assert old.asked == []
    await old.made.wait()
    late.cancel()
    for _ in range(4):
        await Scaler(core, "another", SCOPE, opened).run_once()
        await asyncio.sleep(60)
    assert old.machines == {}
    assert {m.state for m in await machines(cluster, core) if m.provider == "command"} == {MachineState.GONE}
    assert len(new.machines) == (says is not None)


async def test_a_zone_that_a_pool_no_longer_names_is_listed_while_it_has_machines(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    listed: list[list[str]] = []

    async def opened(core: Core, pool: str, spec: ProvisioningSpec) -> MemoryProvider:
        listed.append(spec.zones)
        return provider

    await with_pool(core, zones=["us-a"])
    await with_jobs(core, 1)
    scaler = Scaler(core, "one", SCOPE, opened)
    await scaler.run_once()
    await set_pool(core, ProvisioningSpec(provider="command", zones=["eu-b"], capacity=HOST, max=0))
    await scaler.run_once()
    for _ in range(4):
        await asyncio.sleep(60)
        await scaler.run_once()
    assert provider.machines == {}
    await asyncio.sleep(AFTERMATH_SECONDS)
    await scaler.run_once()
    await scaler.run_once()
    assert listed[:2] == [["us-a"], ["eu-b", "us-a"]]
    assert listed[-1] == ["eu-b"]


async def test_a_pool_whose_record_cannot_be_read_keeps_its_machines_and_says_so(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core)
    await with_jobs(core, 1)
    scaler = Scaler(core, "one", SCOPE, provider.open)
    await scaler.run_once()
    await core.store.put(PoolKeys.record(POOL), b"{", ANY)
    for _ in range(3):
        found = await scaler.run_once()
        await asyncio.sleep(60)
    assert len(provider.machines) == 1
    assert found[POOL].problem


async def test_a_machine_that_cannot_be_deleted_yet_is_not_forgotten_with_its_pool(cluster: Cluster) -> None:
    """Its record is gone too, so only the provider's list shows it."""
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core)
    await with_jobs(core, 1)
    scaler = Scaler(core, "one", SCOPE, provider.open)
    await scaler.run_once()
    (name,) = provider.machines
    await set_pool(core, None)
    await core.store.delete(MachineKeys.key(POOL, name))
    provider.keeps = True
    await scaler.run_once()
    await asyncio.sleep(STRAY_SECONDS)
    for _ in range(3):
        await scaler.run_once()
    provider.keeps = False
    await scaler.run_once()
    assert provider.machines == {}


async def test_a_machine_whose_record_cannot_be_read_is_not_forgotten_with_its_pool(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core)
    await with_jobs(core, 1)
    scaler = Scaler(core, "one", SCOPE, provider.open)
    await scaler.run_once()
    (key,) = cluster.keys(MachineKeys.folder(POOL))
    await set_pool(core, None)
    await core.store.put(key, b"{", ANY)
    for _ in range(3):
        found = await scaler.run_once()
    assert key in found[POOL].problem
    await core.store.delete(key)
    await scaler.run_once()
    assert provider.machines != {}, "as long as a backup may be old that lacks its record"
    await asyncio.sleep(STRAY_SECONDS)
    await scaler.run_once()
    assert provider.machines == {}


async def test_a_provider_that_does_not_answer_is_not_forgotten_with_its_pool(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core)
    await with_jobs(core, 1)
    scaler = Scaler(core, "one", SCOPE, provider.open)
    await scaler.run_once()
    await set_pool(core, None)
    await core.store.delete(*cluster.keys(MachineKeys.folder(POOL)))
    provider.silent = True
    for _ in range(3):
        await scaler.run_once()
    provider.silent = False
    await scaler.run_once()
    await asyncio.sleep(STRAY_SECONDS)
    await scaler.run_once()
    assert provider.machines == {}


async def test_a_provider_that_was_closed_is_not_called_again(cluster: Cluster) -> None:
    """In between, the pool's record had a provider that could not be opened."""
    core, opened = await cluster.core(), list[MemoryProvider]()

    async def open_provider(core: Core, pool: str, spec: ProvisioningSpec) -> MemoryProvider:
        if spec.machine_type == "broken":
            raise ProviderError("denied", "no credentials")
        opened.append(MemoryProvider())
        return opened[-1]

    scaler = Scaler(core, "one", SCOPE, open_provider)
    for spec in (SOUND, replace(SOUND, machine_type="broken"), SOUND):
        await set_pool(core, spec)
        await scaler.run_once()
    assert [provider.closed for provider in opened] == [True, False]
