"""The capacity of a host, as its kernel and its cgroups state it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fray_agents.host.capacity import discover

GIB = 1024**3
CORES = len(os.sched_getaffinity(0))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with 64 GiB and no cgroups."""
    put(tmp_path, "proc/meminfo", f"MemTotal: {64 * 1024**2} kB\nMemFree: 1 kB\n")
    return tmp_path


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def nvidia_smi(root: Path, script: str) -> dict[str, str]:
    """An environment with an `nvidia-smi` that does what `script` says."""
    put(root, "bin/nvidia-smi", f"#!/bin/sh\n{script}\n")
    (root / "bin/nvidia-smi").chmod(0o755)
    return {"PATH": str(root / "bin")}


def test_a_host_without_limits(root: Path) -> None:
    found = discover(root, root=root, environ={})
    assert (found.cpu, found.memory, found.device, found.device_count) == (1000 * CORES, 64 * GIB, "", 0)
    assert found.disk == pytest.approx(os.statvfs(root).f_bavail * os.statvfs(root).f_frsize, rel=0.05)


def test_limits_of_a_unified_cgroup_and_its_ancestors(root: Path) -> None:
    put(root, "proc/self/cgroup", "0::/pod/container\n")
    put(root, "sys/fs/cgroup/pod/container/cpu.max", "max 100000\n")
    put(root, "sys/fs/cgroup/pod/container/memory.max", f"{8 * GIB}\n")
    put(root, "sys/fs/cgroup/pod/cpu.max", "75000 100000\n")
    put(root, "sys/fs/cgroup/pod/memory.max", "max\n")
    found = discover(root, root=root, environ={})
    assert (found.cpu, found.memory) == (750, 8 * GIB)


def test_limits_of_cgroups_by_controller(root: Path) -> None:
    put(root, "proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n")
    put(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n")
    put(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    put(root, "sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "-1\n")
    put(root, "sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000\n")
    put(root, "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", f"{2 * GIB}\n")
    put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    found = discover(root, root=root, environ={})
    assert (found.cpu, found.memory) == (500, 2 * GIB)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NVIDIA H100 80GB HBM3", "gpu-h100"),
        ("NVIDIA A100-SXM4-40GB", "gpu-a100"),
        ("Tesla T4", "gpu-t4"),
        ("NVIDIA GeForce RTX 4090", "gpu-rtx4090"),
    ],
)
def test_gpus(root: Path, name: str, device: str) -> None:
    environ = nvidia_smi(root, f"echo '{name}'; echo '{name}'")
    found = discover(root, root=root, environ=environ)
    assert (found.device, found.device_count) == (device, 2)


@pytest.mark.parametrize(("visible", "count"), [("0", 1), ("0,1", 2), ("", 0), ("-1", 0)])
def test_gpus_that_are_hidden_are_not_offered(root: Path, visible: str, count: int) -> None:
    environ = nvidia_smi(root, "echo 'NVIDIA L4'; echo 'NVIDIA L4'") | {"CUDA_VISIBLE_DEVICES": visible}
    assert discover(root, root=root, environ=environ).device_count == count


def test_a_broken_driver_is_said_and_offers_nothing(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = discover(root, root=root, environ=nvidia_smi(root, "exit 9"))
    assert found.device == ""
    assert "no GPUs are offered, because nvidia-smi fails" in caplog.text


def test_tpu_chips(root: Path) -> None:
    for chip in range(4):
        put(root, f"dev/accel{chip}", "")
    found = discover(root, root=root, environ={"TPU_ACCELERATOR_TYPE": "v4-32"})
    assert (found.device, found.device_count) == ("tpu-v4-32", 4)


def test_tpu_chips_of_newer_kinds(root: Path) -> None:
    for name in ("0", "1", "vfio"):
        put(root, f"dev/vfio/{name}", "")
    found = discover(root, root=root, environ={"TPU_ACCELERATOR_TYPE": "v6e-8"})
    assert (found.device, found.device_count) == ("tpu-v6e-8", 2)
    assert discover(root, root=root, environ={}).device == ""
