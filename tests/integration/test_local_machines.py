"""Machines that are agents on this host: how `fray agent` uses the arguments, and how they end."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from fray_agents.host.capacity import host_name
from fray_agents.provisioning.identity import provider_name
from fray_agents.provisioning.provider import MachineRequest, ProviderError
from fray_agents.provisioning.providers import local
from fray_agents.provisioning.providers.local import LocalProvider
from fray_coordinator.core import Core, open_core
from fray_coordinator.protocol.scaling.view import ListedMachine, ListedState
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, ProvisioningSpec, Resources, SliceMember
from tests.support.agents import QUICK
from tests.support.waiting import eventually

NAME, TYPE = "m0aaaaaaaaaaaaa1", "v4-16"
SPEC = ProvisioningSpec(
    provider="local", machine_type=TYPE, zones=[host_name()], spot=True, capacity=Resources(cpu=1500, memory=2**30)
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the machines of this host. Their agents are killed at the end."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    machines = tmp_path / f"fray-{os.geteuid()}" / "machines"
    yield machines
    for lock in machines.glob("*/host-*.lock"):
        if local._is_held(lock):
            os.kill(int(lock.read_text()), signal.SIGKILL)


@pytest_asyncio.fixture
async def core(tmp_path: Path) -> AsyncIterator[Core]:
    opened = await open_core(str(tmp_path / "root"), QUICK)
    yield opened
    await opened.store.close()


def asked(root: str, hosts: int = 2) -> MachineRequest:
    labels = {"team": "vision"}
    return MachineRequest(
        pool="slices", names=[NAME], zone=host_name(), spec=SPEC, root=root, hosts=hosts, labels=labels
    )


async def only(provider: LocalProvider, state: ListedState) -> ListedMachine:
    """The only machine. Waits until it is in this state."""

    async def look() -> ListedMachine | None:
        [machine] = await provider.list()
        return machine if machine.state is state else None

    return await eventually(look)


async def agent_records(core: Core, state: str) -> list[AgentRecord]:
    listing = await core.store.list(AgentKeys.area)
    found = [await core.records.read(entry.key, AgentRecord) for entry in listing]
    return [one.record for one in found if one is not None and one.record.state == state]


async def test_each_host_of_a_slice_is_an_agent_that_outlives_its_maker(core: Core, folder: Path) -> None:
    provider = LocalProvider("cluster", "slices", SPEC)
    await provider.create(asked(core.root))
    await provider.close()

    async def have_joined() -> list[AgentRecord]:
        live = await agent_records(core, "live")
        return live if len(live) == 2 else []

    agents = await eventually(have_joined)
    members = [agent.slice for agent in agents]
    assert sorted(members, key=lambda member: member.index if member else -1) == [
        SliceMember(id=NAME, type=TYPE, index=index, hosts=2) for index in range(2)
    ]
    for agent in agents:
        assert (agent.pool, agent.machine, agent.labels) == ("slices", NAME, {"team": "vision"})
        assert (agent.capacity.cpu, agent.capacity.memory, agent.preemptible) == (1500, 2**30, True)

    provider = LocalProvider("cluster", "slices", SPEC)
    assert await provider.list() == [ListedMachine("slices", NAME, host_name(), ListedState.READY, NAME)]
    machine = folder / provider_name("cluster", "slices", NAME)
    os.kill(int((machine / "host-1.lock").read_text()), signal.SIGKILL)
    assert (await only(provider, ListedState.LOST)).error == ""
    await provider.delete(NAME, host_name())

    async def is_gone() -> bool:
        return not await provider.list()

    await eventually(is_gone)
    assert not machine.exists()
    assert len(await agent_records(core, "left")) == 1


async def test_an_agent_that_cannot_start_says_why(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "file").touch()
    provider = LocalProvider("cluster", "slices", SPEC)
    await provider.create(asked(str(tmp_path / "file"), hosts=1))
    assert "is a file, not a folder" in (await only(provider, ListedState.LOST)).error


async def test_an_agent_that_does_not_leave_is_killed(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = "trap '' TERM; echo deaf; exec sleep 1000"
    monkeypatch.setattr(local, "_FRAY", ("sh", "-c", deaf, "sh"))
    provider = LocalProvider("cluster", "slices", SPEC)
    await provider.create(asked("memory://root", hosts=1))
    machine = folder / provider_name("cluster", "slices", NAME)
    await eventually(lambda: "deaf" in (machine / "host-0.log").read_text())
    await provider.delete(NAME, host_name())
    assert (await only(provider, ListedState.ENDING)).name == NAME
    with pytest.raises(ProviderError, match="is being removed"):
        await provider.create(asked("memory://root", hosts=1))
    os.utime(machine / "ending", (0, 0))

    async def is_gone() -> bool:
        return not await provider.list()

    await eventually(is_gone)


async def test_the_maker_of_a_machine_may_die_at_any_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies after it has started one of two agents. The machine is lost, and the same request makes it whole."""
    monkeypatch.setattr(local, "_FRAY", ("sh", "-c", "exec sleep 1000", "sh"))
    provider = LocalProvider("cluster", "slices", SPEC)
    await provider.create(asked("memory://root"))
    machine = folder / provider_name("cluster", "slices", NAME)
    os.kill(int((machine / "host-1.lock").read_text()), signal.SIGKILL)
    await eventually(lambda: not local._is_held(machine / "host-1.lock"))
    (machine / "host-1.lock").unlink()
    assert "ended before all agents were started" in (await only(provider, ListedState.LOST)).error
    await provider.create(asked("memory://root"))
    await only(provider, ListedState.READY)


async def test_another_hosts_machines_are_neither_listed_nor_made_here(folder: Path) -> None:
    spec = ProvisioningSpec(provider="local", zones=["elsewhere"])
    provider = LocalProvider("cluster", "slices", spec)
    for call in (provider.list(), provider.create(asked("memory://root")), provider.delete(NAME, "elsewhere")):
        with pytest.raises(ProviderError, match="processes of elsewhere, not of this host; scale it there") as caught:
            await call
        assert caught.value.kind == "denied"


async def test_a_job_makes_none_because_they_would_end_with_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAY_JOB_ID", "job-1")
    with pytest.raises(ProviderError, match="would end with this job") as raised:
        await LocalProvider("cluster", "p", SPEC).list()
    assert raised.value.kind == "denied"
