"""The options --gpus and --tpu of `fray run` and `fray reserve`, and --gpus of `fray agent`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from fray_layouts.errors import InvalidInput

if TYPE_CHECKING:
    from fray.resources import DeviceConfig


def device_of(gpus: str | None, tpu: str | None) -> DeviceConfig:
    """The device that a job asks for. Raises UsageError if both options are given, and what `parse_gpus` raises."""
    from fray.resources import CpuConfig, GpuConfig, TpuConfig

    if gpus is not None and tpu is not None:
        raise click.UsageError("--gpus and --tpu cannot be combined; give one of them")
    if tpu is not None:
        return TpuConfig(tpu)
    if gpus is None:
        return CpuConfig()
    kind, count = parse_gpus(gpus)
    return GpuConfig(kind or "auto", count)


def parse_gpus(text: str) -> tuple[str, float]:
    """Kind and count of the GPUs in "8" (any kind: ""), "h100:8" or "0.5". Raises InvalidInput if there is no count."""
    kind, _, count = text.rpartition(":")
    if not re.fullmatch(r"[0-9]+|0?\.[0-9]+", count):
        raise InvalidInput("--gpus", text, "give a count, or kind:count such as h100:8")
    return kind, int(count) if count.isdecimal() else float(count)
