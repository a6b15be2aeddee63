"""What a host offers and where it is: its resources within the limits of cgroups, its place, and its software."""

import importlib.metadata
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from fray_agents.host.accelerators import QUERY_TIMEOUT, chip_files
from fray_agents.host.container_engine import find_engine
from fray_agents.runner.task_cgroup import UNIFIED, cgroup_directories
from fray_layouts.bounds import MAX_NAME
from fray_layouts.records import Resources, SliceMember, Software
from fray_runtime.pickling import OWN_PYTHON
from fray_runtime.variables import read_variable

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class HostPlace:
    """The place of an agent's host, as in `AgentRecord`."""

    zone: str = ""
    region: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    slice: SliceMember | None = None


def host_name() -> str:
    """The name of this host, used as the zone of machines that are processes on it."""
    return _NOT_IN_NAMES.sub("-", socket.gethostname())[:MAX_NAME].strip("-") or "localhost"


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
    return replace(discover_without_devices(directory, root=root), device=device, device_count=count)


def discover_without_devices(directory: Path | None = None, *, root: Path = Path("/")) -> Resources:
    """The cores, memory and disk of this host; it takes milliseconds. Arguments as for `discover`."""
    return Resources(
        cpu=min([1000 * len(os.sched_getaffinity(0)), *_cpu_quotas(root)]),
        memory=min([_memory_total(root), *_memory_limits(root)]),
        disk=shutil.disk_usage(directory or tempfile.gettempdir()).free,
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


OLDEST_PYTHON = (3, 11)
"""The first version that Fray itself runs on; environments use no older one."""

_INTERPRETER = re.compile(r"python(3)\.(\d{1,3})")
_MANAGED = re.compile(r"cpython-3\.\d{1,3}\.\d+-linux\b")
_ELF = b"\x7fELF"


def discover_software(environ: Mapping[str, str] = os.environ) -> Software:
    """The software of this host; takes a millisecond. environ: the environment whose `PATH` and uv settings count."""
    pythons = find_pythons(environ) if find_uv(environ) else {}
    engine = find_engine(environ)
    return Software(
        python=OWN_PYTHON,
        pythons=sorted(pythons, key=_number),
        containers=engine.name if engine is not None else "",
        fray=fray_version(),
    )


def fray_version() -> str:
    """The version of the agent."""
    return importlib.metadata.version("fray-cluster")


def find_uv(environ: Mapping[str, str] = os.environ) -> str | None:
    """The path of uv: from the agent's own packages, else from the host's PATH; None if there is none."""
    own = os.path.join(sysconfig.get_path("scripts"), "uv")
    return own if os.access(own, os.X_OK) else shutil.which("uv", path=environ.get("PATH"))


def find_pythons(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The interpreters of this host by minor version, as "3.12": this process's, those on PATH, and those of uv.

    Scripts named like an interpreter are left out: version managers install them even for missing versions.
    """
    found = {OWN_PYTHON: sys.executable}
    for path in _candidates(environ):
        name = _INTERPRETER.fullmatch(path.name)
        if name and (int(name[1]), int(name[2])) >= OLDEST_PYTHON and _is_program(path):
            found.setdefault(f"{name[1]}.{name[2]}", str(path))
    return found


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    for folder in environ.get("PATH", os.defpath).split(os.pathsep):
        if folder:
            yield from Path(folder).glob("python3.*")
    data = read_variable("XDG_DATA_HOME", environ) or os.path.join(
        read_variable("HOME", environ) or os.sep, ".local", "share"
    )
    managed = Path(read_variable("UV_PYTHON_INSTALL_DIR", environ) or os.path.join(data, "uv", "python"))
    yield from (python for python in managed.glob("cpython-*/bin/python3.*") if _MANAGED.match(python.parts[-3]))


def _is_program(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return os.access(path, os.X_OK) and file.read(len(_ELF)) == _ELF
    except OSError:
        return False


def _number(minor: str) -> int:
    return int(minor.partition(".")[2])
