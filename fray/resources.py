"""What a job needs while it runs, in the spellings of all who wrote programs for `fray`.

Sizes are bytes or text such as "512MiB", "2GB", "8g".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from fray.topology import get_tpu_topology
from fray_layouts.errors import InvalidInput

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


@dataclass(frozen=True, init=False)
class TpuConfig:
    """A TPU slice. variant: "v5litepod-16" ..., `tpu_type` is the same thing; count: chips of one host."""

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


def _either(field: str, value: T | None, other: str, same: T | None) -> T | None:
    """The one of two spellings of a field that was given."""
    if value is not None and same is not None:
        raise InvalidInput(field, value, f"it is the same as {other}; give one of them")
    return same if value is None else value


def _fill(config: object, **values: object) -> None:
    """Set the fields of a frozen dataclass."""
    vars(config).update(values)


DeviceConfig = CpuConfig | GpuConfig | TpuConfig


@dataclass(frozen=True, init=False)
class ResourceConfig:
    """What one replica of a job needs while it runs.

    Args:
        cpu: cores; fractions to a thousandth.
        ram: memory; `memory` is the same thing.
        disk: scratch space.
        device: accelerator.
        preemptible: False keeps the job off hosts that may be taken away.
        regions, zone, target_cluster, device_alternatives, image: where else or in what to run; a later release.
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
        )

    @property
    def memory(self) -> Size:
        """The same as `ram`."""
        return self.ram

    @classmethod
    def with_cpu(cls, cpu: float = 1, ram: Size | None = None, **others: Any) -> ResourceConfig:
        """Resources without an accelerator; `others` as for the class."""
        return cls(cpu, ram, device=CpuConfig(), **others)

    @classmethod
    def with_gpu(
        cls, gpu_type: str = "auto", count: int = 1, cpu: float = 4, ram: Size | None = None, **others: Any
    ) -> ResourceConfig:
        """`count` GPUs of a kind on one host, with 16 GB of memory by default; `others` as for the class."""
        size = "16GB" if ram is None and "memory" not in others else ram
        return cls(cpu, size, device=GpuConfig(gpu_type, count), **others)

    @classmethod
    def with_tpu(cls, tpu_type: TpuType | Sequence[TpuType], slice_count: int = 1, **others: Any) -> ResourceConfig:
        """`slice_count` slices of a TPU type such as "v5litepod-16"; of several types the first is preferred.

        Raises:
            InvalidInput: there is no such type, or several differ in machines or in chips of a machine.
        """
        first, *alternatives = [tpu_type] if isinstance(tpu_type, str) else tpu_type
        shapes = {(info.vm_count, info.chips_per_vm) for info in map(get_tpu_topology, (first, *alternatives))}
        if len(shapes) > 1:
            raise InvalidInput("tpu_type", tpu_type, "all types must have as many machines, with as many chips each")
        return cls(
            device=TpuConfig(first), replicas=slice_count, device_alternatives=tuple(alternatives) or None, **others
        )
