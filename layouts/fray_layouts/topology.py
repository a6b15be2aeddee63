"""The types of TPU slices that Google Cloud offers, with their chips, hosts and virtual machines.

In the name of a v4 or v5p type, the number counts cores, of which a chip has two; in the name of a v5e (`v5litepod`) or
v6e type, it counts chips.
"""

from dataclasses import dataclass

from fray_layouts.errors import InvalidInput
from fray_layouts.units import first_names

CHIPS_PER_VM = 4
"""Chips per virtual machine in a slice of several hosts, in every family; a slice of one host is one machine."""


@dataclass(frozen=True)
class TpuTopologyInfo:
    """A type of TPU slice, with its numbers of chips, hosts and virtual machines.

    Attributes:
        name: such as "v5litepod-16".
        chip_count: chips of the whole slice.
        host_count: physical hosts.
        vm_count: virtual machines, each with a process of its own.
        chips_per_vm: chips that one process sees.
    """

    name: str
    chip_count: int
    host_count: int
    vm_count: int
    chips_per_vm: int


def _slice(name: str, chips: int, chips_per_host: int) -> TpuTopologyInfo:
    """A slice of several hosts, or of one if `chips` fit on it."""
    per_vm = chips if chips <= chips_per_host else CHIPS_PER_VM
    return TpuTopologyInfo(name, chips, -(-chips // chips_per_host), chips // per_vm, per_vm)


_V4_CORES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_V5P_CORES = (8, 16, 32, 64, *range(128, 9985, 128), *range(10240, 12289, 128))
_V5E_CHIPS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_V6E_CHIPS = (1, 4, 8, 16, 32, 64, 128, 256)
"""The sizes that Google Cloud's pages on each family list (docs.cloud.google.com/tpu/docs/v4 and so on)."""

TPU_TOPOLOGIES: dict[str, TpuTopologyInfo] = {
    info.name: info
    for info in (
        *(_slice(f"v4-{cores}", cores // 2, 4) for cores in _V4_CORES),
        *(_slice(f"v5p-{cores}", cores // 2, 4) for cores in _V5P_CORES),
        *(_slice(f"v5litepod-{chips}", chips, 8) for chips in _V5E_CHIPS),
        *(_slice(f"v6e-{chips}", chips, 8 if chips <= 8 else 4) for chips in _V6E_CHIPS),
    )
}


def get_tpu_topology(tpu_type: str) -> TpuTopologyInfo:
    """Look up the topology of a type such as "v5litepod-16".

    Raises:
        InvalidInput (a ValueError): there is no such type.
    """
    if tpu_type not in TPU_TOPOLOGIES:
        raise InvalidInput("tpu_type", tpu_type, f"there are {_known_like(str(tpu_type))}")
    return TPU_TOPOLOGIES[tpu_type]


def _known_like(tpu_type: str) -> str:
    """Types of the same family, for an error; if the family is unknown, each family's smallest multi-host type."""
    family = tpu_type.rpartition("-")[0]
    if known := [name for name in TPU_TOPOLOGIES if name.rpartition("-")[0] == family]:
        return first_names(known, 12)
    smallest: dict[str, str] = {}
    for info in TPU_TOPOLOGIES.values():
        if info.vm_count > 1:
            smallest.setdefault(info.name.rpartition("-")[0], info.name)
    return f"{', '.join(smallest.values())} and others"


_FAMILIES = {"v4": "v4", "v5litepod": "v5e", "v5e": "v5e", "v5p": "v5p", "v6e": "v6e"}


def tpu_family(tpu_type: str) -> str:
    """The family of a type of TPU slice: "v4", "v5e", "v5p" or "v6e". For example, "v5litepod-16" belongs to "v5e".

    Raises:
        InvalidInput (a ValueError): the name begins with no known family.
    """
    family, dash, _ = tpu_type.partition("-")
    if not dash or family not in _FAMILIES:
        raise InvalidInput("tpu_type", tpu_type, f"its name begins with one of {', '.join(_FAMILIES)}, and a dash")
    return _FAMILIES[family]
