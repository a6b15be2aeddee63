"""Types of the keyword arguments that the class methods of `ResourceConfig` pass on to it, for type checkers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

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
