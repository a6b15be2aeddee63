"""What a job needs while it runs, in the spellings of all who wrote programs for `fray`.

Sizes are bytes or text such as "512MiB", "2GB", "8g".
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypedDict, TypeVar, Unpack

from fray.device_flops import known_flops
from fray.topology import get_tpu_topology
from fray_layouts.errors import InvalidInput
from fray_layouts.units import parse_bytes

T = TypeVar("T")
Size = int | str
DeviceKind = Literal["cpu", "gpu", "tpu"]
GpuType = str
TpuType = str

ANY_REGION = "*"
"""As the only one of `ResourceConfig.regions`: wherever there is room."""


@dataclass(frozen=True)
class CpuConfig:
    """No accelerator."""

    kind: DeviceKind = "cpu"
    variant: str = "cpu"

    def chip_count(self) -> int:
        """Accelerators: none."""
        return 0

    def device_flops(self, dtype: str = "bf16") -> float:
        """Raises InvalidInput: processors differ too much for a figure to mean anything."""
        raise InvalidInput("device", self.kind, "peak arithmetic is known of accelerators only")

    def default_env_vars(self) -> dict[str, str]:
        """The variables that programs set for such a device: JAX keeps to the processors."""
        return {"JAX_PLATFORMS": "cpu"}


@dataclass(frozen=True, init=False)
class GpuConfig:
    """GPUs of one host. variant: "h100", "a100-40gb" ..., "auto" for any; `gpu_type` is the same thing."""

    variant: GpuType
    count: int
    kind: DeviceKind

    def __init__(
        self,
        variant: GpuType | None = None,
        count: int = 1,
        kind: DeviceKind = "gpu",
        *,
        gpu_type: GpuType | None = None,
    ) -> None:
        chosen = _either("device.variant", variant, "gpu_type", gpu_type)
        _fill(self, variant="auto" if chosen is None else chosen, count=count, kind=kind)

    def chip_count(self) -> int:
        """How many GPUs."""
        return self.count

    def device_flops(self, dtype: str = "bf16") -> float:
        """Peak operations a second of one of them; raises InvalidInput if `fray.device_flops` does not know it."""
        return known_flops("device.variant", self.variant, dtype)

    def total_flops(self, dtype: str = "bf16") -> float:
        """The same of all of them."""
        return self.device_flops(dtype) * self.chip_count()

    def default_env_vars(self) -> dict[str, str]:
        """The variables that programs set for such a device: JAX finds it by itself."""
        return {"JAX_PLATFORMS": ""}


@dataclass(frozen=True, init=False)
class TpuConfig:
    """A TPU slice. variant: "v5litepod-16" ..., `tpu_type` is the same thing.

    count: of such slices, 1: a job has all chips that a slice has on one host.
    """

    variant: TpuType
    topology: str | None
    count: int
    kind: DeviceKind

    def __init__(
        self,
        variant: TpuType | None = None,
        topology: str | None = None,
        count: int = 1,
        kind: DeviceKind = "tpu",
        *,
        tpu_type: TpuType | None = None,
    ) -> None:
        chosen = _either("device.variant", variant, "tpu_type", tpu_type)
        if chosen is None:
            raise InvalidInput("device.variant", chosen, "name a type such as 'v5litepod-16'")
        _fill(self, variant=chosen, topology=topology, count=count, kind=kind)

    def chip_count(self) -> int:
        """Chips of one virtual machine of the slice. Raises InvalidInput: there is no such type."""
        return get_tpu_topology(self.variant).chips_per_vm

    def vm_count(self) -> int:
        """Virtual machines of the slice. Raises InvalidInput: there is no such type."""
        return get_tpu_topology(self.variant).vm_count

    def device_flops(self, dtype: str = "bf16") -> float:
        """Peak operations a second of one chip; raises InvalidInput if `fray.device_flops` does not know it."""
        return known_flops("device.variant", self.variant, dtype)

    def total_flops(self, dtype: str = "bf16") -> float:
        """The same of all chips of one virtual machine."""
        return self.device_flops(dtype) * self.chip_count()

    def default_env_vars(self) -> dict[str, str]:
        """The variables that programs set for such a device: JAX finds it by itself."""
        return {"JAX_PLATFORMS": ""}


def _either(field: str, value: T | None, other: str, same: T | None) -> T | None:
    """The one of two spellings of a field that was given."""
    if value is not None and same is not None:
        raise InvalidInput(field, value, f"it is the same as {other}; give one of them")
    return same if value is None else value


def _fill(config: object, **values: object) -> None:
    """Set the fields of a frozen dataclass."""
    vars(config).update(values)


DeviceConfig = CpuConfig | GpuConfig | TpuConfig


class PlacementOptions(TypedDict, total=False):
    """What `ResourceConfig.with_tpu` and its siblings take as the class does."""

    disk: Size
    preemptible: bool
    regions: Sequence[str] | None
    zone: str | None
    target_cluster: str | None
    image: str | None
    container_profile: str | None
    memory: Size | None


class GpuOptions(PlacementOptions, total=False):
    """The same, of `with_gpu`."""

    replicas: int | None
    device_alternatives: Sequence[str] | None


class CpuOptions(GpuOptions, total=False):
    """The same, of `with_cpu`."""

    count: int | None


class TpuOptions(PlacementOptions, total=False):
    """The same, of `with_tpu`, whose type says how many processes there are."""

    cpu: float
    ram: Size | None


@dataclass(frozen=True, init=False)
class ResourceConfig:
    """What one replica of a job needs while it runs.

    Args:
        cpu: cores; fractions to a thousandth.
        ram: memory; `memory` is the same thing.
        disk: scratch space.
        device: accelerator.
        preemptible: False keeps the job off hosts that may be taken away.
        regions, zone, target_cluster, device_alternatives, image, container_profile: where else or in what to run; a
            later release.
        replicas: processes that run as one gang, 1 by default; `count` and `JobRequest.replicas` are the same thing.

    Raises:
        InvalidInput: both spellings of a field are given.
    """

    cpu: float
    ram: Size
    disk: Size
    device: DeviceConfig
    preemptible: bool
    regions: Sequence[str] | None
    zone: str | None
    target_cluster: str | None
    replicas: int
    device_alternatives: Sequence[str] | None
    image: str | None
    container_profile: str | None

    def __init__(
        self,
        cpu: float = 1,
        ram: Size | None = None,
        disk: Size = "1g",
        device: DeviceConfig | None = None,
        preemptible: bool = True,
        regions: Sequence[str] | None = None,
        zone: str | None = None,
        target_cluster: str | None = None,
        replicas: int | None = None,
        device_alternatives: Sequence[str] | None = None,
        image: str | None = None,
        container_profile: str | None = None,
        *,
        memory: Size | None = None,
        count: int | None = None,
    ) -> None:
        size = _either("resources.ram", ram, "memory", memory)
        processes = _either("resources.replicas", replicas, "count", count)
        _fill(
            self,
            cpu=cpu,
            ram="128m" if size is None else size,
            disk=disk,
            device=device or CpuConfig(),
            preemptible=preemptible,
            regions=regions,
            zone=zone,
            target_cluster=target_cluster,
            replicas=1 if processes is None else processes,
            device_alternatives=device_alternatives,
            image=image,
            container_profile=container_profile,
        )

    @property
    def memory(self) -> Size:
        """The same as `ram`."""
        return self.ram

    def __hash__(self) -> int:
        return hash((self.cpu, self.ram, self.disk, self.device, self.replicas))

    def chip_count(self) -> int:
        """Accelerators of all replicas."""
        return self.device.chip_count() * self.replicas

    def device_flops(self, dtype: str = "bf16") -> float:
        """Peak operations a second of one accelerator. Raises InvalidInput if it is not known."""
        return self.device.device_flops(dtype)

    def total_flops(self, dtype: str = "bf16") -> float:
        """The same of all replicas."""
        return self.device_flops(dtype) * self.chip_count()

    def scale(
        self,
        factor: float | None = None,
        /,
        *,
        cpu: float | None = None,
        ram: float | None = None,
        disk: float | None = None,
    ) -> ResourceConfig:
        """The same with so many times the cores, memory and disk; by name, of those that are named.

        Raises:
            InvalidInput: a factor is below 0, or both ways are used.
        """
        named = {"cpu": cpu, "ram": ram, "disk": disk}
        given = {name: value for name, value in named.items() if value is not None}
        if factor is not None and given:
            raise InvalidInput("factor", factor, "give one factor, or those of cpu, ram and disk by name")
        factors = dict.fromkeys(named, 1.0 if factor is None else factor) | given
        for name, value in factors.items():
            if value < 0:
                raise InvalidInput(name, value, "give a factor of at least 0")
        return replace(
            self,
            cpu=self.cpu * factors["cpu"],
            ram=_scaled("resources.ram", self.ram, factors["ram"]),
            disk=_scaled("resources.disk", self.disk, factors["disk"]),
        )

    @classmethod
    def with_cpu(cls, cpu: float = 1, ram: Size | None = None, **others: Unpack[CpuOptions]) -> ResourceConfig:
        """Resources without an accelerator; `others` as for the class."""
        return cls(cpu, ram, device=CpuConfig(), **others)

    @classmethod
    def with_gpu(
        cls,
        gpu_type: str = "auto",
        count: int = 1,
        cpu: float = 4,
        ram: Size | None = None,
        **others: Unpack[GpuOptions],
    ) -> ResourceConfig:
        """`count` GPUs of a kind on one host, with 16 GB of memory by default; `others` as for the class."""
        size = "16GB" if ram is None and "memory" not in others else ram
        return cls(cpu, size, device=GpuConfig(gpu_type, count), **others)

    @classmethod
    def with_tpu(
        cls, tpu_type: TpuType | Sequence[TpuType], slice_count: int = 1, **others: Unpack[TpuOptions]
    ) -> ResourceConfig:
        """`slice_count` slices of a TPU type such as "v5litepod-16"; of several types the first is preferred.

        `replicas` is the number of their virtual machines together: each has a process of its own.

        Raises:
            InvalidInput: there is no such type, none is named, or several differ in machines or in chips of a machine.
        """
        types = [tpu_type] if isinstance(tpu_type, str) else list(tpu_type)
        if not types:
            raise InvalidInput("tpu_type", tpu_type, "name at least one type, such as 'v5litepod-16'")
        infos = [get_tpu_topology(name) for name in types]
        if len({(info.vm_count, info.chips_per_vm) for info in infos}) > 1:
            raise InvalidInput("tpu_type", tpu_type, "all types must have as many machines, with as many chips each")
        return cls(
            device=TpuConfig(types[0]),
            replicas=slice_count * infos[0].vm_count,
            device_alternatives=types[1:] or None,
            **others,
        )


def _scaled(field: str, size: Size, factor: float) -> Size:
    """A size in the unit that it was given in."""
    parse_bytes(field, size)
    if isinstance(size, int):
        return round(size * factor)
    number = size.rstrip(string.ascii_letters + " ")
    return f"{float(number) * factor:.9f}".rstrip("0").rstrip(".") + size.removeprefix(number)
