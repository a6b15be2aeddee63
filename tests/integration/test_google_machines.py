"""Machines of Google's providers whose hosts are real agents: they run jobs, end when idle, and are preempted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fray_agents.provisioning.provider import MachineRequest
from fray_agents.provisioning.providers import cloud_run, tpu
from fray_coordinator.core import Core
from fray_coordinator.protocol.scaling.view import ListedState
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, CloudRunSettings, ProvisioningSpec, TpuSettings
from tests.support.agents import ended, launch, quick_core
from tests.support.booted_agents import BootedAgents
from tests.support.fake_cloud_run import FakeCloudRun
from tests.support.fake_tpu import FakeTpu
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


async def agents_of(core: Core, count: int) -> list[AgentRecord]:
    """The records of agents. Waits until there are this many."""

    async def look() -> list[AgentRecord] | None:
        rows = await core.store.list("agents/")
        found = [await core.records.read(row.key, AgentRecord) for row in rows if AgentKeys.parse(row.key)]
        there = [one.record for one in found if one is not None]
        return there if len(there) == count else None

    return await eventually(look)


async def test_an_execution_of_cloud_run_is_an_agent_that_ends_when_it_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    booted = BootedAgents()
    fake = FakeCloudRun(boot=booted.start)
    spec = ProvisioningSpec(
        provider="cloud_run",
        zones=["us-central1"],
        idle_seconds=300,
        cloud_run=CloudRunSettings(image="lab/fray", project="lab"),
    )
    async with quick_core(tmp_path / "root") as core:
        with fake.serve() as address:
            monkeypatch.setenv(cloud_run.EMULATOR_VARIABLE, address)
            job = await launch(core, "print('hello')", pool="web")
            provider = await cloud_run.open_cloud_run(core.settings.cluster_id, "web", spec)
            wanted = MachineRequest(pool="web", names=["m1"], zone="us-central1", spec=spec, root=core.root)
            await provider.create(wanted)
            await provider.create(wanted)
            assert (await ended(core, job)).status == "succeeded"
            [agent] = await agents_of(core, 1)
            assert (agent.pool, agent.machine, agent.region) == ("web", "m1", "us-central1")
            await provider.delete("m1", "us-central1")
            assert await provider.list() == []
            hasty = msgspec.structs.replace(spec, idle_seconds=0)
            await provider.create(replace(wanted, names=["m2"], spec=hasty))
            [process] = booted.of_machine["m2"]
            assert await eventually(lambda: process.poll() is not None)
            assert process.returncode == 0
            fake.finish([*fake.executions][-1])
            assert await provider.list() == []
            await provider.close()


async def test_slices_of_a_gang_are_agents_and_one_is_preempted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    booted = BootedAgents()
    fake = FakeTpu(boot=booted.start_hosts)
    spec = ProvisioningSpec(
        provider="tpu",
        machine_type="v5litepod-4",
        zones=["us-east5-a"],
        spot=True,
        tpu=TpuSettings(image="lab/fray", project="lab"),
    )
    async with quick_core(tmp_path / "root") as core:
        with fake.serve() as address:
            monkeypatch.setenv(tpu.EMULATOR_VARIABLE, address)
            provider = await tpu.open_tpu(core.settings.cluster_id, "tpus", spec)
            await provider.create(
                MachineRequest(pool="tpus", names=["m1", "m2"], zone="us-east5-a", spec=spec, root=core.root)
            )
            agents = await agents_of(core, 2)
            assert {(agent.pool, agent.machine, agent.capacity.device_count) for agent in agents} == {
                ("tpus", "m1", 4),
                ("tpus", "m2", 4),
            }
            fake.preempt(next(path for path in fake.nodes if path.endswith("-1")).rpartition("/")[2])
            assert {machine.name: machine.state for machine in await provider.list()} == {
                "m1": ListedState.READY,
                "m2": ListedState.LOST,
            }
            for name in ("m2", "m1"):
                await provider.delete(name, "us-east5-a", "m1")
            assert await provider.list() == []
            assert all(process.poll() is not None for made in booted.of_machine.values() for process in made)
            await provider.close()
