"""TPU chips: which process holds one, and how an agent reacts."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from fray.cli.options import chip_check
from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.agent.devices import CHIP_CHECK_INTERVAL, IDLE_PATIENCE, ChipWatch
from fray_agents.agent.held import HeldBundle
from fray_agents.environments.cache import HostUnfit
from fray_agents.host.accelerators import chip_trouble
from fray_coordinator.core import Core
from fray_coordinator.protocol.placements.hosts import host_view
from fray_layouts.index_keys import PendingKey, Shape
from fray_layouts.records import AgentRecord, Resources
from tests.support.agents import agent_record, ended, launch, quick_core
from tests.support.members import trusted_member
from tests.support.virtual import Cluster, run
from tests.support.waiting import eventually

TPU = Resources(cpu=8000, memory=2**34, disk=2**34, device="tpu-v5litepod-4", device_count=4)
CPU = Shape(cpu=1000, memory=0, disk=0, device="", device_count=0, on_demand=False)
WANTS = replace(CPU, device="tpu-v5litepod-4", device_count=4)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with four chips and with the processes of this machine."""
    root = tmp_path / "host"
    (root / "dev").mkdir(parents=True)
    for number in range(4):
        (root / f"dev/accel{number}").touch()
    (root / "proc").symlink_to("/proc")
    return root


class Holder:
    """A process that has a file open."""

    def __init__(self, path: Path) -> None:
        code = "import sys; held = open(sys.argv[1]); print(flush=True); sys.stdin.read()"
        command = [sys.executable, "-c", code, str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def holder(root: Path) -> Iterator[Holder]:
    held = Holder(root / "dev/accel2")
    yield held
    held.end()


def test_chips_are_free_if_all_are_there_and_nobody_has_one_open(root: Path) -> None:
    assert chip_trouble(4, root) == ""


def test_a_chip_that_is_missing_is_told(root: Path) -> None:
    (root / "dev/accel3").unlink()
    assert chip_trouble(4, root) == "3 of its 4 TPU chips have a device file"
    assert chip_trouble(3, root) == ""


def test_chips_of_newer_kinds(tmp_path: Path) -> None:
    (tmp_path / "dev/vfio").mkdir(parents=True)
    for name in ("0", "1", "vfio"):
        (tmp_path / "dev/vfio" / name).touch()
    process = tmp_path / "proc/47"
    (process / "fd").mkdir(parents=True)
    (process / "comm").write_text("python\n")
    assert chip_trouble(2, tmp_path) == ""
    (process / "fd/3").symlink_to(tmp_path / "dev/vfio/vfio")
    assert chip_trouble(2, tmp_path) == "", "all users of VFIO have its control file"
    (process / "fd/4").symlink_to(tmp_path / "dev/vfio/1")
    assert chip_trouble(2, tmp_path) == f"process 47 (python) has the TPU chip {tmp_path}/dev/vfio/1 open"


def test_a_file_that_a_process_closes_meanwhile_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/accel0").touch()
    opened = tmp_path / "proc/47/fd"
    opened.mkdir(parents=True)
    (opened / "4").symlink_to(tmp_path / "dev/accel0")
    monkeypatch.setattr("fray_agents.host.accelerators.os.listdir", lambda folder: ["3", "4"])
    assert "has the TPU chip" in chip_trouble(1, tmp_path)


def test_a_process_that_has_a_chip_open_is_named_until_it_ends(root: Path, holder: Holder) -> None:
    told = chip_trouble(4, root)
    assert told.startswith(f"process {holder.process.pid} (python")
    assert told.endswith(f"has the TPU chip {root}/dev/accel2 open")
    holder.end()
    assert chip_trouble(4, root) == ""


def test_a_host_that_poses_as_one_with_chips_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fray_agents.host.accelerators.chip_files", lambda root=None: [])
    assert chip_check(TPU, is_tpu_vm=False) is None
    assert chip_check(Resources(cpu=1000), is_tpu_vm=True) is None
    sick = chip_check(TPU, is_tpu_vm=True)
    assert sick is not None
    assert sick() == "0 of its 4 TPU chips have a device file"


def test_a_host_is_unfit_while_somebody_holds_a_chip() -> None:
    trouble = [""]

    async def scenario(cluster: Cluster) -> None:
        core = await cluster.core()
        member = trusted_member(core, TPU)
        watch = ChipWatch(member, lambda: trouble[0])
        task = HeldBundle(number=0, wants=WANTS)
        other = HeldBundle(number=1, wants=CPU)
        await watch.check(task)
        trouble[0] = "process 47 holds one"
        await watch.check(other)
        assert member.may_claim()
        before = core.clock.boottime()
        with pytest.raises(HostUnfit, match=r"^process 47 holds one$"):
            await watch.check(task)
        assert core.clock.boottime() - before >= IDLE_PATIENCE, "it may only be slow to get free"
        assert (member.unfit, member.may_claim()) == (True, False)
        assert member.beat_by <= core.clock.boottime(), "others hear of it now"
        assert member.problems.summary(member.problems.now()) == "claims nothing: process 47 holds one"
        looks = asyncio.create_task(watch.run())
        await core.clock.sleep(CHIP_CHECK_INTERVAL + IDLE_PATIENCE + 1)
        assert member.unfit
        trouble[0] = ""
        await core.clock.sleep(CHIP_CHECK_INTERVAL + 1)
        assert member.may_claim()
        trouble[0] = "3 of its 4 chips are there"
        await core.clock.sleep(CHIP_CHECK_INTERVAL + IDLE_PATIENCE + 1)
        looks.cancel()
        assert member.problems.chips == "claims nothing: 3 of its 4 chips are there"

    run(scenario)


def test_a_chip_that_a_job_of_the_agent_holds_is_no_trouble_unless_the_job_cannot_be_killed() -> None:
    class Task:
        unkilled: ClassVar[list[int]] = []

    async def scenario(cluster: Cluster) -> None:
        core = await cluster.core()
        member = trusted_member(core, TPU)
        watch = ChipWatch(member, lambda: "process 48 holds one")
        lease = member.leases.add(entry())
        lease.task = Task()  # type: ignore[assignment]
        looks = asyncio.create_task(watch.run())
        await core.clock.sleep(3 * (CHIP_CHECK_INTERVAL + IDLE_PATIENCE))
        assert not member.unfit
        Task.unkilled.append(48)
        await core.clock.sleep(CHIP_CHECK_INTERVAL + IDLE_PATIENCE + 1)
        looks.cancel()
        assert member.unfit

    run(scenario)


def entry() -> PendingKey:
    return PendingKey("default", 0, 1e9, "j-1", 1, WANTS)


async def test_an_agent_takes_no_job_while_a_stranger_has_a_chip_and_says_so(
    tmp_path: Path, root: Path, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fray_agents.agent.devices.CHIP_CHECK_INTERVAL", 0.2)
    options = AgentOptions(capacity=TPU, work_dir=tmp_path / "work", check_chips=partial(chip_trouble, 4, root))
    async with quick_core(tmp_path / "root") as core:
        agent = Agent(core, options)
        life = asyncio.create_task(agent.run())
        try:
            sick = await agent_record(core, agent.id)
            assert sick.unfit
            assert f"claims nothing: process {holder.process.pid}" in sick.problem
            assert not host_view(sick, {}).willing
            device = {"kind": "tpu", "variant": "v5litepod-4", "count": 4}
            job = await launch(core, "print('on chips')", resources={"cpu": 1, "device": device})
            holder.end()
            assert (await ended(core, job)).status == "succeeded"
            fit = await eventually(lambda: _fit(core, agent.id))
            assert fit.problem == ""
        finally:
            agent.terminate()
            await life


async def _fit(core: Core, agent: str) -> AgentRecord | None:
    record = await agent_record(core, agent)
    return record if not record.unfit else None


def test_a_job_that_starts_during_a_check_is_no_trouble() -> None:
    async def scenario(cluster: Cluster) -> None:
        core = await cluster.core()
        member = trusted_member(core, TPU)
        looks = asyncio.create_task(ChipWatch(member, lambda: "process 48 holds one").run())
        await core.clock.sleep(CHIP_CHECK_INTERVAL + IDLE_PATIENCE / 2)
        member.leases.add(entry()).starting = asyncio.create_task(asyncio.sleep(60))
        await core.clock.sleep(IDLE_PATIENCE)
        looks.cancel()
        assert not member.unfit

    run(scenario)
