"""GPUs: which ones a job gets, how it learns of them, and when a GPU is taken out of use."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from fray_agents.agent.devices import GpuWatch
from fray_agents.agent.held import HeldBundle
from fray_agents.agent.leases import Leases
from fray_agents.environments.cache import HostUnfit
from fray_agents.host.accelerators import gpu_names, gpu_variables, gpus_in_trouble
from fray_coordinator.protocol.scheduling import HostKind, gpus_for, shape_of, shortage
from fray_layouts.index_keys import PendingKey, Shape
from fray_layouts.records import Resources
from fray_layouts.spec_parsing import parse_spec
from tests.support.members import trusted_member
from tests.support.virtual import Cluster, run

HOST = Resources(cpu=64_000, memory=2**40, disk=2**40, device="gpu-h100", device_count=4)
LISTED = "echo '0, GPU-aa-1'; echo '1, GPU-bb-2'"


def shape(count: float) -> Shape:
    device = {"kind": "gpu", "count": count}
    return shape_of(
        parse_spec({"name": "j", "entrypoint": {"command": ["x"]}, "resources": {"cpu": 0, "device": device}})
    )


def entry(count: float, number: int = 0) -> PendingKey:
    return PendingKey("default", 0, 1e9, f"j-{number}", 1, shape(count))


@pytest.mark.parametrize(
    ("count", "left", "places"),
    [
        (2, [1000, 0, 1000, 1000], (0, 2)),
        (2, [1000, 999, 0, 0], ()),
        (0.5, [1000, 700, 500, 400], (2,)),
        (0.5, [400, 1000], (1,)),
        (0.5, [400, 0], ()),
    ],
)
def test_parts_of_a_gpu_share_it_and_whole_gpus_are_not_shared(
    count: float, left: list[int], places: tuple[int, ...]
) -> None:
    assert gpus_for(shape(count), left) == places


@given(st.lists(st.tuples(st.sampled_from([0.25, 0.3, 0.5, 0.75, 1, 2, 3]), st.booleans()), max_size=40))
def test_a_request_within_the_free_gpus_fits_and_no_gpu_is_given_twice(steps: list[tuple[float, bool]]) -> None:
    leases = Leases(HOST)
    for number, (count, ends_one) in enumerate(steps):
        if ends_one and leases.held:
            leases.remove(next(iter(leases.held.values())))
        wanted = entry(count, number)
        if not shortage(wanted.shape, leases.free(), HostKind()):
            assert len(leases.add(wanted).gpus) == max(1, count)
        parts = [0] * 4
        for lease in leases.held.values():
            for place in lease.gpus:
                parts[place] += lease.entry.shape.device_share or 1000
        assert max(parts) <= 1000
        assert leases.free().device_count == parts.count(0)


def test_an_idle_job_leaves_its_gpus_to_others_and_gets_the_remaining_ones() -> None:
    leases = Leases(HOST)
    first = leases.add(entry(3, 1))
    first.idle = True
    assert leases.add(entry(2, 2)).gpus == (0, 1)
    leases.use_again(first)
    assert (first.gpus, first.stop) == ((), (0.0, "preempted"))


def test_a_host_could_not_have_bundles_for_which_its_usable_gpus_do_not_suffice() -> None:
    leases = Leases(HOST, gpus_out={3: "another process computes on it"})
    assert leases.could_have([HeldBundle(number=0, wants=shape(3))], HostKind())
    assert not leases.could_have([HeldBundle(number=0, wants=shape(4))], HostKind())


def test_a_part_of_a_gpu_is_part_of_the_entry_s_name() -> None:
    key = entry(0.125).key()
    assert key.endswith("~c0m0d0g0.125gpu")
    assert PendingKey.parse(key) == entry(0.125)


def test_a_task_is_told_its_gpus_in_every_vendor_s_words_and_without_any_that_there_are_none() -> None:
    assert gpu_names(2, {"CUDA_VISIBLE_DEVICES": "2,GPU-bb,7"}) == ["2", "GPU-bb"]
    assert gpu_names(2, {}) == ["0", "1"]
    told = gpu_variables(["2", "3"])
    assert (told["CUDA_VISIBLE_DEVICES"], told["HIP_VISIBLE_DEVICES"]) == ("2,3", "2,3")
    assert told["ONEAPI_DEVICE_SELECTOR"] == "level_zero:2,3;cuda:*;hip:*;*:cpu"
    assert gpu_variables(["GPU-bb"])["ONEAPI_DEVICE_SELECTOR"] == "cuda:*;hip:*;*:cpu"
    none = gpu_variables([])
    assert (none["CUDA_VISIBLE_DEVICES"], none["ONEAPI_DEVICE_SELECTOR"]) == ("-1", "*:cpu")


@pytest.mark.parametrize(
    ("script", "name", "why"),
    [
        (f'case "$1" in *gpu=*) {LISTED};; esac', "0", ""),
        (f"case \"$1\" in *gpu=*) {LISTED};; *) echo 'GPU-bb-2, 47, python';; esac", "0", ""),
        (f"case \"$1\" in *gpu=*) {LISTED};; *) echo 'GPU-bb-2, 47, python';; esac", "1", "process 47 (python)"),
        (f"case \"$1\" in *gpu=*) {LISTED};; *) echo 'GPU-bb-2, 47, python';; esac", "GPU-bb", "process 47 (python)"),
        (f"case \"$1\" in *gpu=*) {LISTED};; *) echo 'GPU-aa-1, 1, nvidia-cuda-mps-server';; esac", "0", ""),
        (f'case "$1" in *gpu=*) {LISTED};; esac', "2", "does not list it"),
        ("echo 'Unable to determine the device handle: GPU is lost'; exit 15", "0", "GPU is lost"),
        ("exit 9", "MIG-1", ""),
    ],
)
async def test_nvidia_smis_answer_decides_whether_a_gpu_is_in_trouble(
    tmp_path: Path, script: str, name: str, why: str
) -> None:
    trouble = await gpus_in_trouble([name], nvidia_smi(tmp_path, script))
    assert list(trouble) == ([name] if why else [])
    assert why in trouble.get(name, "")


async def test_without_nvidia_smi_nobody_can_tell(tmp_path: Path) -> None:
    assert await gpus_in_trouble(["0"], {"PATH": str(tmp_path)}) == {}


def test_a_gpu_that_stays_in_use_is_taken_out_told_and_offered_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users: dict[str, str] = {"1": "process 47 computes on it"}

    async def trouble(names: list[str], environ: Any) -> dict[str, str]:
        return {name: users[name] for name in names if name in users}

    async def scenario(cluster: Cluster) -> None:
        core = await cluster.core()
        member = trusted_member(core, HOST)
        watch = GpuWatch(member, {})
        shared, second = member.leases.add(entry(0.5, 1)), member.leases.add(entry(1, 2))
        await watch.check(shared)
        before = core.clock.boottime()
        with pytest.raises(HostUnfit, match="GPU 1 is taken out: process 47 computes on it"):
            await watch.check(second)
        assert core.clock.boottime() - before >= 10, "it may only be slow to get free"
        member.leases.remove(second)
        assert (member.leases.free().device_count, member.leases.free().device_shares) == (2, [500])
        assert "GPU 1 is taken out" in member.problems.summary(member.problems.now())
        assert member.leases.add(entry(2, 3)).gpus == (2, 3)
        users["0"] = "the first sharer's own process"
        await watch.check(member.leases.add(entry(0.5, 4)))
        users.clear()
        rechecks = asyncio.create_task(watch.run())
        await core.clock.sleep(61)
        rechecks.cancel()
        assert member.leases.free().device_count == 1
        assert member.problems.summary(member.problems.now()) == ""

    monkeypatch.setattr("fray_agents.agent.devices.gpus_in_trouble", trouble)
    run(scenario)


def test_a_host_none_of_whose_gpus_can_be_used_takes_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    users = {"0": "the driver does not list it", "1": "the driver does not list it"}

    async def trouble(names: list[str], environ: Any) -> dict[str, str]:
        return {name: users[name] for name in names if name in users}

    async def scenario(cluster: Cluster) -> None:
        core = await cluster.core()
        member = trusted_member(core, replace(HOST, device_count=2))
        watch = GpuWatch(member, {})
        first = member.leases.add(entry(1, 1))
        with pytest.raises(HostUnfit):
            await watch.check(first)
        member.leases.remove(first)
        assert member.may_claim(), "it has another one"
        second = member.leases.add(entry(1, 2))
        with pytest.raises(HostUnfit):
            await watch.check(second)
        assert (member.unfit, member.may_claim()) == (True, False)
        assert member.beat_by <= core.clock.boottime(), "others hear of it now"
        users.clear()
        rechecks = asyncio.create_task(watch.run())
        await core.clock.sleep(61)
        rechecks.cancel()
        assert member.may_claim()

    monkeypatch.setattr("fray_agents.agent.devices.gpus_in_trouble", trouble)
    run(scenario)


def nvidia_smi(folder: Path, script: str) -> dict[str, str]:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": str(folder)}
