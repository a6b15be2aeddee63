"""Prices of machines by the hour: the list prices in `prices.json`, unless a pool has an `hourly_cost` of its own.

For TPUs the file has, by family and region, the dollars an hour of one chip, and of one spot chip (null: not listed).
For Cloud Run it has, by region, the dollars an hour of one vCPU and of one GiB of memory. Its `source` and `read` say
where the prices come from, and when they were read.
"""

from __future__ import annotations

import difflib
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from fray_layouts.records import ProvisioningSpec
from fray_layouts.topology import get_tpu_topology, tpu_family

_GIB = 2**30

_SIMILARITY = 0.85
"""Ratio of `difflib` from which a region counts as misspelled: "us-esat5" and "us-east5" have 0.875."""

CLOUD_RUN_CPU, CLOUD_RUN_MEMORY = 1000, 512 * 2**20
"""The size of a container on Cloud Run if its pool does not say: thousandths of a vCPU, and bytes."""


def hourly_cost(spec: ProvisioningSpec, zone: str) -> float | None:
    """Dollars an hour of one machine of the pool in a zone; None if the price is not known."""
    if spec.hourly_cost is not None:
        return spec.hourly_cost
    if spec.provider == "local":
        return 0.0
    if spec.provider == "tpu":
        listed = _prices()["tpu_chip_hour"][tpu_family(spec.machine_type)].get(_region(zone))
        chip = listed[1 if spec.spot else 0] if listed is not None else None
        return None if chip is None else chip * get_tpu_topology(spec.machine_type).chip_count
    if spec.provider == "cloud_run" and (listed := _prices()["cloud_run_hour"].get(zone)) is not None:
        has = spec.capacity
        cpu = (has.cpu if has is not None else 0) or CLOUD_RUN_CPU
        memory = (has.memory if has is not None else 0) or CLOUD_RUN_MEMORY
        cost: float = listed[0] * cpu / 1000 + listed[1] * memory / _GIB
        return cost
    return None


def unpriced(spec: ProvisioningSpec) -> list[str]:
    """The zones of the pool without a known price; [""] if the pool names no zones and has no price."""
    return [zone for zone in spec.zones or [""] if hourly_cost(spec, zone) is None]


def similar_zone(spec: ProvisioningSpec, zone: str) -> str:
    """The zone, with its region replaced by the most similarly spelled one that has a price; "" if none is similar."""
    prices = _prices()
    known = prices["tpu_chip_hour"][tpu_family(spec.machine_type)] if spec.provider == "tpu" else {}
    known = prices["cloud_run_hour"] if spec.provider == "cloud_run" else known
    region = _region(zone) if spec.provider == "tpu" else zone
    near = (
        difflib.get_close_matches(region, set(known) - {region}, n=1, cutoff=_SIMILARITY) if region not in known else []
    )
    return near[0] + zone.removeprefix(region) if near else ""


def _region(zone: str) -> str:
    return zone.rpartition("-")[0]


@cache
def _prices() -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(files(__package__).joinpath("prices.json").read_bytes())
    return found
