"""The resources that a job needs of a host: cores, memory, disk and accelerators.

Sizes are bytes, or text such as "512MiB", "2GB", "8g". Some fields have a second spelling for older programs.
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypedDict, TypeVar, Unpack

from fray.call_forms import says_form
from fray.device_flops import known_flops
from fray_layouts.errors import InvalidInput
from fray_layouts.topology import get_tpu_topology
from fray_layouts.units import parse_bytes

T = TypeVar("T")
DeviceKind = Literal["cpu", "gpu", "tpu"]
GpuType = str
TpuType = str

ANY_REGION = "*"
"""Means every region: `ResourceConfig(regions=[ANY_REGION])` runs wherever there is room."""


@dataclass(frozen=True)
class CpuConfig:
    """No accelerator: the job runs on CPUs only."""

    kind: DeviceKind = "cpu"
    variant: str = "cpu"

    def chip_count(self) -> int:
        """The number of accelerators, which is 0."""
        return 0

    def device_flops(self, dtype: str = "bf16") -> float:
        """Always raise InvalidInput: there are no figures for CPUs, which differ too much.

        Raises:
            InvalidInput: always.
        """
        raise InvalidInput("device", self.kind, "peak arithmetic is known for accelerators only")

    def default_env_vars(self) -> dict[str, str]:
        """The environment variables that programs set for this device. With them JAX uses the CPUs only."""
        return {"JAX_PLATFORMS": "cpu"}


class _Accelerator:
    """The base class of GPUs and TPUs."""

    variant: str

    def chip_count(self) -> int:
        raise NotImplementedError

    def device_flops(self, dtype: str = "bf16") -> float:
        """Peak floating-point operations per second of one chip, or one GPU, for numbers of type `dtype`.

        Raises:
            InvalidInput: `fray.device_flops` has no figure for it.
        """
        return known_flops("device.variant", self.variant, dtype)

    def total_flops(self, dtype: str = "bf16") -> float:
        """Peak floating-point operations per second of all of them on one machine. Raises like `device_flops`."""
        return self.device_flops(dtype) * self.chip_count()

    def default_env_vars(self) -> dict[str, str]:
        """The environment variables that programs set for this device. With them JAX finds the device by itself."""
        return {"JAX_PLATFORMS": ""}


@dataclass(frozen=True, init=False)
class GpuConfig(_Accelerator):
    """GPUs of one host.

    Attributes:
        variant: the type, such as "h100" or "a100-40gb"; "auto" takes any.
        count: number of GPUs. A fraction, such as 0.5, is a share of a GPU; others may have the rest.
        gpu_type: in the constructor, the same as `variant`.

    Raises:
        InvalidInput: both `variant` and `gpu_type` are given.
    """

    variant: GpuType
    count: float
    kind: DeviceKind

    def __init__(
        self,
        variant: GpuType | None = None,
        count: float = 1,
        kind: DeviceKind = "gpu",
        *,
        gpu_type: GpuType | None = None,
    ) -> None:
        chosen = _only_one("device.variant", variant, "gpu_type", gpu_type)
        _set_fields(self, variant="auto" if chosen is None else chosen, count=count, kind=kind)

    def chip_count(self) -> int:
        """The number of GPUs that the job sees: `count`, or 1 for a share of one."""
        return math.ceil(self.count)


@dataclass(frozen=True, init=False)
class TpuConfig(_Accelerator):
    """A TPU slice.

    Attributes:
        variant: the type of the slice, such as "v5litepod-16".
        topology: leave it None; the type determines it.
        count: leave it 1; a job always has all chips of its slice on a host.
        tpu_type: in the constructor, the same as `variant`.

    Raises:
        InvalidInput: neither or both of `variant` and `tpu_type` are given.
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
        chosen = _only_one("device.variant", variant, "tpu_type", tpu_type)
        if chosen is None:
            raise InvalidInput("device.variant", chosen, "name a type such as 'v5litepod-16'")
        _set_fields(self, variant=chosen, topology=topology, count=count, kind=kind)

    def chip_count(self) -> int:
        """The number of chips of one virtual machine of the slice.

        Raises:
            InvalidInput: there is no such type.
        """
        return get_tpu_topology(self.variant).chips_per_vm

    def vm_count(self) -> int:
        """The number of virtual machines of the slice. Each runs its own process.

        Raises:
            InvalidInput: there is no such type.
        """
        return get_tpu_topology(self.variant).vm_count


def _only_one(field: str, value: T | None, other: str, same: T | None) -> T | None:
    """The value of a field that has two spellings. Raises InvalidInput if both are given."""
    if value is not None and same is not None:
        raise InvalidInput(field, value, f"it is the same as {other}; give one of them")
    return same if value is None else value


def _set_fields(config: object, **values: object) -> None:
    """Set the fields of a frozen dataclass."""
    vars(config).update(values)


DeviceConfig = CpuConfig | GpuConfig | TpuConfig


_WITH_GPU = 'it is device=GpuConfig("h100", count=8), or write ResourceConfig.with_gpu("h100", count=8)'
_ELSEWHERE = {
    **dict.fromkeys(("gpus", "gpu", "num_gpus", "gpu_type", "accelerator", "accelerators"), _WITH_GPU),
    **dict.fromkeys(("tpu", "tpus", "tpu_type"), 'write ResourceConfig.with_tpu("v5litepod-16")'),
    **dict.fromkeys(("cpus", "num_cpus", "cores"), "it is cpu, the number of cores"),
    **dict.fromkeys(("mem", "memory_gb"), 'it is memory, such as "16GB"'),
    **dict.fromkeys(("spot", "use_spot"), "it is preemptible"),
}
"""Arguments that other systems have, and what they are in a `ResourceConfig`."""


@says_form('ResourceConfig(cpu=4, memory="16GB", device=GpuConfig("h100", count=2))', _ELSEWHERE)
@dataclass(frozen=True, init=False)
class ResourceConfig:
    """The resources that one replica of a job needs of a host while it runs. It is immutable and compared by value.

        ResourceConfig(cpu=4, ram="16g", device=GpuConfig("h100", count=2))

    Args:
        cpu: number of cores; fractions to a thousandth.
        ram: memory, "128m" by default. It is reserved, and a job that uses more is ended. The default value is only
            reserved and is not a limit; the same holds for `disk`. `memory` is another name for it.
        disk: scratch space, reserved and limited in the same way.
        device: the accelerator; by default none.
        preemptible: False keeps the job off hosts that the cloud may take away at any time.
        hard_cpu: True limits the job to `cpu` cores even while other cores are idle.
        replicas: number of processes that run as one gang, 1 by default. `count` and `JobRequest.replicas` mean the
            same. For a TPU that spans several hosts the default is one slice: a process on each virtual machine.
        regions: names of regions; the host must be in one of them. None, or ANY_REGION among them: anywhere.
        zone: the zone that the host must be in.
        labels: labels that the agent must have, as set by `fray agent --label name=value`.
        device_alternatives: other variants of the same kind of device that will do, in order of preference.
        target_cluster, image, container_profile: not supported in this release. A cluster refuses a job that has them.

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
    hard_cpu: bool
    labels: Mapping[str, str] | None

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
        hard_cpu: bool = False,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        size = _only_one("resources.ram", ram, "memory", memory)
        processes = _only_one("resources.replicas", replicas, "count", count)
        _set_fields(
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
            hard_cpu=hard_cpu,
            labels=labels,
        )

    @property
    def memory(self) -> Size:
        """The memory as it was given; the same as `ram`."""
        return self.ram

    def __hash__(self) -> int:
        return hash((self.cpu, self.ram, self.disk, self.device, self.replicas))

    def chip_count(self) -> int:
        """The number of accelerators of all replicas together; of a TPU, its chips."""
        return self.device.chip_count() * self.replicas

    def device_flops(self, dtype: str = "bf16") -> float:
        """Peak floating-point operations per second of one accelerator, for numbers of type `dtype`.

        Raises:
            InvalidInput: `fray.device_flops` has no figure for it.
        """
        return self.device.device_flops(dtype)

    def total_flops(self, dtype: str = "bf16") -> float:
        """Peak floating-point operations per second of all replicas' accelerators. Raises like `device_flops`."""
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
        """Make a config with multiples of the cores, memory and disk: `scale(2)`, or `scale(ram=0.5)`.

        Args:
            factor: the factor for cores, memory and disk.
            cpu, ram, disk: a factor for one of them; the others stay unchanged.

        Raises:
            InvalidInput: a factor is below 0, or `factor` is given together with others.
        """
        named = {"cpu": cpu, "ram": ram, "disk": disk}
        given = {name: value for name, value in named.items() if value is not None}
        if factor is not None and given:
            raise InvalidInput("factor", factor, "give either one factor, or factors of cpu, ram and disk by name")
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
        """Make a config without an accelerator. `others` are arguments of `ResourceConfig`."""
        return cls(cpu, ram, device=CpuConfig(), **others)

    @classmethod
    def with_gpu(
        cls,
        gpu_type: str = "auto",
        count: float = 1,
        cpu: float = 4,
        ram: Size | None = None,
        **others: Unpack[GpuOptions],
    ) -> ResourceConfig:
        """Make a config with GPUs of one host.

        Args:
            gpu_type: the type, such as "h100" or "a100-40gb"; "auto" takes any.
            count: number of GPUs, or a share of one such as 0.5.
            cpu: number of cores.
            ram: memory; "16GB" by default.
            others: arguments of `ResourceConfig`.
        """
        size = "16GB" if ram is None and "memory" not in others else ram
        return cls(cpu, size, device=GpuConfig(gpu_type, count), **others)

    @classmethod
    def with_tpu(
        cls, tpu_type: TpuType | Sequence[TpuType], slice_count: int = 1, **others: Unpack[TpuOptions]
    ) -> ResourceConfig:
        """Make a config with TPU slices. It has one replica, a process, for each of their virtual machines.

        Args:
            tpu_type: the type, such as "v5litepod-16", or several types in order of preference. All of them must have
                the same number of machines, and of chips per machine.
            slice_count: number of slices.
            others: arguments of `ResourceConfig`.

        Raises:
            InvalidInput: no type is named, there is no such type, the types differ, or `slice_count` is below 1.
        """
        if not isinstance(slice_count, int) or slice_count < 1:
            raise InvalidInput("slice_count", slice_count, "ask for at least 1 slice")
        if not isinstance(tpu_type, (str, list, tuple)):
            raise InvalidInput("tpu_type", tpu_type, "give a type, such as 'v5litepod-16', or a list of some")
        types = [tpu_type] if isinstance(tpu_type, str) else list(tpu_type)
        if not types:
            raise InvalidInput("tpu_type", tpu_type, "name at least one type, such as 'v5litepod-16'")
        infos = [get_tpu_topology(name) for name in types]
        if len({(info.vm_count, info.chips_per_vm) for info in infos}) > 1:
            remedy = "all types must have the same number of machines, and of chips per machine"
            raise InvalidInput("tpu_type", tpu_type, remedy)
        return cls(
            device=TpuConfig(types[0]),
            replicas=slice_count * infos[0].vm_count,
            device_alternatives=types[1:] or None,
            **others,
        )


def _scaled(field: str, size: Size, factor: float) -> Size:
    """A multiple of a size, in the unit of the given size."""
    parse_bytes(field, size)
    if isinstance(size, int):
        return round(size * factor)
    number = size.rstrip(string.ascii_letters + " ")
    return f"{float(number) * factor:.9f}".rstrip("0").rstrip(".") + size.removeprefix(number)


Size = int | str


class PlacementOptions(TypedDict, total=False):
    """Arguments that `with_cpu`, `with_gpu` and `with_tpu` pass on to `ResourceConfig`."""

    disk: Size
    preemptible: bool
    regions: Sequence[str] | None
    zone: str | None
    target_cluster: str | None
    image: str | None
    container_profile: str | None
    memory: Size | None
    hard_cpu: bool
    labels: Mapping[str, str] | None


class GpuOptions(PlacementOptions, total=False):
    """Arguments that `with_gpu` passes on to `ResourceConfig`."""

    replicas: int | None
    device_alternatives: Sequence[str] | None


class CpuOptions(GpuOptions, total=False):
    """Arguments that `with_cpu` passes on to `ResourceConfig`."""

    count: int | None


class TpuOptions(PlacementOptions, total=False):
    """Arguments that `with_tpu` passes on to `ResourceConfig`. `replicas` is missing: the TPU's type determines it."""

    cpu: float
    ram: Size | None
