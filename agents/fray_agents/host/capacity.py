"""Measures what this host can offer to tasks: the kernel's figures, within cgroup limits and CPU affinity."""

import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from fray_agents.host.chips import chip_files
from fray_agents.host.gpus import QUERY_TIMEOUT
from fray_agents.runner.cgroups import UNIFIED, cgroup_directories
from fray_coordinator.variables import read_variable
from fray_layouts.records import Resources

log = logging.getLogger(__name__)

_GPU_QUERY = ["--query-gpu=name", "--format=csv,noheader"]

_BRANDS = {"nvidia", "tesla", "geforce", "quadro"}
_SERIES = {"rtx", "gtx"}
"""Words of a GPU's name: brands are left out of the variant, and a series is joined to its number."""


def discover(
    directory: Path | None = None, *, root: Path = Path("/"), environ: Mapping[str, str] = os.environ
) -> Resources:
    """Measure this host; takes seconds if it has GPUs.

    Args:
        directory: where tasks work; the disk is its file system's free space. By default that of temporary files.
        root: the folder in which `/proc`, `/sys` and `/dev` are looked for.
        environ: the environment whose `PATH`, `CUDA_VISIBLE_DEVICES` and TPU type count.
    """
    device, count = _gpus(environ) or _tpus(root, environ) or ("", 0)
    return Resources(
        cpu=min([1000 * len(os.sched_getaffinity(0)), *_cpu_quotas(root)]),
        memory=min([_memory_total(root), *_memory_limits(root)]),
        disk=shutil.disk_usage(directory or tempfile.gettempdir()).free,
        device=device,
        device_count=count,
    )


def _cpu_quotas(root: Path) -> Iterator[int]:
    """Thousandths of a core that each cgroup allows; unlimited ones are left out."""
    for text in _settings(root, UNIFIED, "cpu.max"):
        quota, period = text.split()
        if quota != "max":
            yield 1000 * int(quota) // int(period)
    periods = _settings(root, "cpu", "cpu.cfs_period_us")
    for quota, period in zip(_settings(root, "cpu", "cpu.cfs_quota_us"), periods, strict=True):
        if int(quota) > 0:
            yield 1000 * int(quota) // int(period)


def _memory_limits(root: Path) -> Iterator[int]:
    """Bytes that each cgroup allows; the older generation writes a very large number for "unlimited"."""
    for text in (*_settings(root, UNIFIED, "memory.max"), *_settings(root, "memory", "memory.limit_in_bytes")):
        if text != "max":
            yield int(text)


def _settings(root: Path, controller: str, name: str) -> Iterator[str]:
    for place in cgroup_directories(controller, str(root)):
        path = Path(place, name)
        if path.exists():
            yield path.read_text().strip()


def _memory_total(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel always says MemTotal")


def _gpus(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Kind of the first GPU, and the number of GPUs; this assumes that a host has one kind."""
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return None
    try:
        answer = subprocess.run(
            [program, *_GPU_QUERY], capture_output=True, text=True, timeout=QUERY_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("no GPUs are offered, because nvidia-smi fails: %s", error)
        return None
    names = answer.stdout.strip().splitlines()
    visible = read_variable("CUDA_VISIBLE_DEVICES", environ)
    count = len(names) if visible is None else len([part for part in visible.split(",") if part not in ("", "-1")])
    return (f"gpu-{_variant(names[0])}", min(count, len(names))) if names and count else None


def _variant(name: str) -> str:
    """ "NVIDIA A100-SXM4-80GB" is "a100", "NVIDIA GeForce RTX 4090" is "rtx4090"."""
    words = [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _BRANDS]
    return "".join(words[:2]) if words[0] in _SERIES else words[0]


def _tpus(root: Path, environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Kind of the slice, and the number of its chips on this host."""
    variant = read_variable("TPU_ACCELERATOR_TYPE", environ) or read_variable("ACCELERATOR_TYPE", environ)
    files = chip_files(root)
    if not files or (files[0].parent.name == "vfio" and not variant):  # vfio files may belong to any device
        return None
    return f"tpu-{variant}" if variant else "tpu", len(files)
