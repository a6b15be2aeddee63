"""Looks of the scaler where a provider is slow, refuses several machines at once, or lists what nobody can remove."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec.structs import replace

from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.provisioning.provider import ProviderError
from fray_agents.provisioning.scaler import Scaler
from fray_coordinator.core import Core
from fray_coordinator.store.interface import ANY
from fray_layouts.machine_keys import MachineKeys
from fray_layouts.records import ProvisioningSpec
from tests.support.fake_tasks import fake
from tests.support.memory_provider import MemoryProvider
from tests.support.virtual import Cluster
from tests.unit.test_scaler import HOST, POOL, SOUND, set_pool, with_jobs, with_pool


async def test_agents_are_not_silent_because_their_provider_is_slow(cluster: Cluster, tmp_path: Path) -> None:
    core, provider = await cluster.core(), MemoryProvider(slow=80.0)
    await with_pool(core)
    await with_jobs(core, 1)
    options = AgentOptions(pool=POOL, capacity=HOST, work_dir=tmp_path, start_task=fake(tmp_path, {"job": 3600.0}))
    agent = Agent(await cluster.core(), options)
    running = asyncio.create_task(agent.run())
    await asyncio.sleep(60)
    await Scaler(core, "one", provider.open).look()
    assert provider.asked == [], "its job does not wait for a machine"
    running.cancel()


async def test_machines_that_a_zone_refuses_at_once_are_one_refusal(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider(refuse={"us-a": "stockout"})
    await with_pool(core, zones=["us-a"])
    await with_jobs(core, 4)
    found = await Scaler(core, "one", provider.open).look()
    assert provider.asked == [("create", "us-a")] * 4
    assert found[POOL].zones["us-a"].times == 1


async def test_a_machine_that_cannot_be_deleted_yet_is_not_forgotten_with_its_pool(cluster: Cluster) -> None:
    """Its record is gone too, so only the provider's list tells of it."""
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core)
    await with_jobs(core, 1)
    scaler = Scaler(core, "one", provider.open)
    await scaler.look()
    (name,) = provider.machines
    await set_pool(core, None)
    await core.store.delete(MachineKeys.key(POOL, name))
    provider.keeps = True
    for _ in range(3):
        await scaler.look()
    provider.keeps = False
    await scaler.look()
    assert provider.machines == {}


async def test_a_machine_whose_record_cannot_be_read_is_not_forgotten_with_its_pool(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core)
    await with_jobs(core, 1)
    scaler = Scaler(core, "one", provider.open)
    await scaler.look()
    (key,) = cluster.keys(MachineKeys.folder(POOL))
    await set_pool(core, None)
    await core.store.put(key, b"{", ANY)
    for _ in range(3):
        found = await scaler.look()
    assert key in found[POOL].problem
    await core.store.delete(key)
    await scaler.look()
    assert provider.machines == {}


async def test_a_provider_that_does_not_answer_is_not_forgotten_with_its_pool(cluster: Cluster) -> None:
    core, provider = await cluster.core(), MemoryProvider()
    await with_pool(core)
    await with_jobs(core, 1)
    scaler = Scaler(core, "one", provider.open)
    await scaler.look()
    await set_pool(core, None)
    await core.store.delete(*cluster.keys(MachineKeys.folder(POOL)))
    provider.silent = True
    for _ in range(3):
        await scaler.look()
    provider.silent = False
    await scaler.look()
    assert provider.machines == {}


async def test_a_provider_that_was_closed_is_not_called_again(cluster: Cluster) -> None:
    """The pool said something in between with which none could be opened."""
    core, opened = await cluster.core(), list[MemoryProvider]()

    async def open_provider(core: Core, pool: str, spec: ProvisioningSpec) -> MemoryProvider:
        if spec.machine_type == "broken":
            raise ProviderError("denied", "no credentials")
        opened.append(MemoryProvider())
        return opened[-1]

    scaler = Scaler(core, "one", open_provider)
    for spec in (SOUND, replace(SOUND, machine_type="broken"), SOUND):
        await set_pool(core, spec)
        await scaler.look()
    assert [provider.closed for provider in opened] == [True, False]
