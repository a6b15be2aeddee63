"""The GPUs of this host: variables that tell a task which are its own, and nvidia-smi's view of them."""

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence

from fray_agents.host.forks import start_process
from fray_coordinator.variables import read_variable

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
