"""The faults of simulated pools of machines, as a seed draws them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

from fray_layouts.records import ProvisioningSpec, Resources, TpuSettings
from tests.simulation.machine_provider import Service
from tests.simulation.scenario import Plan, between
from tests.simulation.weather import Rates

SINGLES, SLICES = "singles", "slices"
HOST = Resources(cpu=4000, memory=2**36, disk=2**36)
CHIPS = Resources(cpu=4000, memory=2**36, disk=2**36, device="tpu-v4-16", device_count=4)
SLICE = "v4-16"
"""The type of the machines of `SLICES`: two hosts of four chips."""
PROJECTS = ["lab", "team"]
"""The projects in which slices are made, one at a time."""
ZONES = ["a-a", "b-b"]
PRICE = 3.6
"""Dollars an hour: a thousandth of a dollar a second."""


@dataclass(frozen=True, slots=True)
class Trouble(Plan):
    """The faults of a seed's pools. Times are averages in virtual seconds; counts are of machines.

    Attributes:
        most, least: bounds of each pool. dear: whether the price, not `max`, keeps them at `most`.
        batch: most single jobs that are submitted at once.
        preempt_every: time between two preemptions. storms: share of these that take all machines.
        full_every: time between two full disks of hosts, some of them for good; their agents take no work.
        alone: whether scalers run without the lease now and then, like `fray scale --once`.
        move_every: time between two changes of the slices' project.
        strays_every: time between two times when people delete the machines whose records are missing.
        damage_every: time between two damaged records of machines, or malformed objects beside them.
        restore_every: time between two times when an older copy of all records of machines is put in their place.
        outages: outages of the storage, of two minutes at most.
    """

    rates: Rates
    service: Service
    most: int
    least: int
    dear: bool
    batch: int
    preempt_every: float
    storms: float
    full_every: float
    alone: bool
    move_every: float
    strays_every: float
    damage_every: float
    restore_every: float
    outages: int

    @staticmethod
    def drawn(draw: random.Random) -> Trouble:
        return Trouble(
            rates=Rates.drawn(draw),
            service=Service.drawn(draw),
            most=draw.randint(1, 4),
            least=draw.choice([0, 0, 1]),
            dear=draw.random() < 0.3,
            batch=draw.choice([3, 12, 30]),
            preempt_every=between(draw, 30, 600),
            storms=draw.uniform(0, 0.5),
            full_every=between(draw, 60, 1000),
            alone=draw.random() < 0.6,
            move_every=between(draw, 100, 600),
            damage_every=between(draw, 60, 2000),
            outages=draw.choice([0, 0, 1, 2]),
            strays_every=between(draw, 100, 1000),
            restore_every=draw.choice([math.inf, math.inf, 300.0]),
        )

    def spec(self, pool: str) -> ProvisioningSpec:
        """The spec of a pool's machines."""
        limit = self.most * PRICE if self.dear else None
        bounds: dict[str, Any] = {"min": self.least, "max": 9 if self.dear else self.most, "max_hourly_cost": limit}
        bounds |= {"hourly_cost": PRICE, "idle_seconds": 60.0, "zones": ZONES}
        if pool == SINGLES:
            return ProvisioningSpec(provider="command", capacity=HOST, **bounds)
        project = TpuSettings(project=PROJECTS[0])
        return ProvisioningSpec(provider="tpu", machine_type=SLICE, tpu=project, capacity=CHIPS, **bounds)
