"""The accelerators of this host: TPU chips and GPUs, as device files, tools and variables show them."""

import asyncio
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fray_runtime.forks import start_process
from fray_runtime.variables import read_variable


def chip_files(root: Path = Path("/")) -> list[Path]:
    """The device files of the chips: `/dev/accel<n>`, for newer kinds `/dev/vfio/<n>`. root: the parent of `/dev`."""
    return sorted((root / "dev").glob("accel[0-9]*")) or sorted((root / "dev/vfio").glob("[0-9]*"))


def chip_trouble(expected: int, root: Path = Path("/")) -> str:
    """Why the chips of this host cannot all be used now, as text for people; "" if they can.

    Only root sees a process of another user.

    Args:
        expected: number of chips that the host should have.
        root: the folder in which `/dev` and `/proc` are looked for.
    """
    files = chip_files(root)
    if len(files) < expected:
        return f"{len(files)} of its {expected} TPU chips have a device file"
    for process, file in _open_files(root):
        if file in map(str, files):
            return f"process {process.name} ({_program(process)}) has the TPU chip {file} open"
    return ""


def _open_files(root: Path) -> Iterator[tuple[Path, str]]:
    """The folder of each process in `/proc`, with each file that it has open."""
    for process in (root / "proc").glob("[0-9]*"):
        with suppress(OSError):  # it belongs to another user, or has ended meanwhile
            for descriptor in os.listdir(process / "fd"):
                with suppress(FileNotFoundError):  # it was closed meanwhile
                    yield process, os.readlink(process / "fd" / descriptor)


def _program(process: Path) -> str:
    try:
        return (process / "comm").read_text(errors="replace").strip()
    except OSError:
        return "it has ended"


QUERY_TIMEOUT = 20.0
"""Most seconds for nvidia-smi: a driver that wakes up takes some, and a broken one hangs."""

_SHARED_SERVERS = ("nvidia-cuda-mps-server",)
"""Programs that use GPUs on behalf of others, and keep them."""

_NONE = "-1"
"""The value for "no GPU", for CUDA and for HIP; HIP would take an empty text for all GPUs."""


def gpu_names(count: int, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The names by which programs select the GPUs that an agent offers: indices or UUIDs that it may see itself."""
    visible = read_variable("CUDA_VISIBLE_DEVICES", environ)
    visible_names = [part.strip() for part in visible.split(",")] if visible else []
    return [*visible_names, *(str(number) for number in range(len(visible_names), count))][:count]


def gpu_variables(names: Sequence[str]) -> dict[str, str]:
    """The variables that make exactly these GPUs visible to CUDA, ROCm and oneAPI.

    oneAPI selects its own GPUs by index, and sees those of CUDA and ROCm as far as their variables allow.
    """
    chosen = ",".join(names) or _NONE
    indices = ",".join(name for name in names if name.isdecimal())
    selectors = [f"level_zero:{indices}"] * bool(indices) + ["cuda:*", "hip:*"] * bool(names)
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": chosen,
        "HIP_VISIBLE_DEVICES": chosen,
        "ONEAPI_DEVICE_SELECTOR": ";".join([*selectors, "*:cpu"]),
    }


async def gpus_in_trouble(names: Sequence[str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Why some of these GPUs cannot be used now, by name; empty if there is no nvidia-smi.

    A GPU is in trouble if a process computes on it, if the driver does not list it, or if nvidia-smi fails. Parts of a
    GPU (MIG) are not checked.
    """
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    asked = [name for name in names if not name.startswith("MIG")]
    if program is None or not asked:
        return {}
    try:
        listed = await _query(program, "--query-gpu=index,uuid")
        computing = await _query(program, "--query-compute-apps=gpu_uuid,pid,process_name")
    except (OSError, TimeoutError) as error:
        return dict.fromkeys(asked, f"nvidia-smi fails: {error or 'it does not answer'}")
    uuids = {row[0]: row[-1] for row in listed} | {row[-1]: row[-1] for row in listed}
    users = {row[0]: row for row in computing if not row[-1].endswith(_SHARED_SERVERS)}
    trouble = {}
    for name in asked:
        uuid = next((uuids[known] for known in uuids if known == name or known.startswith(f"{name}-")), None)
        if uuid is None:
            trouble[name] = "the driver does not list it any more"
        elif uuid in users:
            trouble[name] = f"process {users[uuid][1]} ({users[uuid][-1]}), which is of no job here, computes on it"
    return trouble


async def _query(program: str, query: str) -> list[list[str]]:
    """Rows of nvidia-smi's answer. Raises OSError if it fails, and TimeoutError."""
    process = await start_process(
        program, query, "--format=csv,noheader", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), QUERY_TIMEOUT)
    except BaseException:
        process.kill()
        raise
    text = out.decode(errors="replace").strip()
    if process.returncode:
        raise OSError(text[-200:] or f"exit code {process.returncode}")
    return [[part.strip() for part in line.split(",")] for line in text.splitlines()]
