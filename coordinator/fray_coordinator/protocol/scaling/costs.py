"""The costs of machines, by their records."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fray_layouts.records import MachineRecord, ProvisioningSpec
from fray_layouts.states import MachineState

ROUNDING = 1e-9
"""The tolerance when a sum of prices is compared with a limit, since 0.1 + 0.2 is more than 0.3 in floats."""


def cost_so_far(machine: MachineRecord, now: float) -> float | None:
    """Dollars from the time when the provider began to bill the machine until it was gone; None if nobody knows."""
    if machine.hourly_cost is None:
        return None
    if machine.billed_at is None:
        return 0.0
    ended = machine.ended_at if machine.ended_at is not None else now
    return max(ended - machine.billed_at, 0.0) / 3600.0 * machine.hourly_cost


def hourly_cost(machines: Iterable[MachineRecord]) -> float:
    """Dollars an hour of the machines that are not gone. Intents count as if they were there."""
    return sum(m.hourly_cost or 0.0 for m in machines if m.state != MachineState.GONE)


def billed_now(machines: Iterable[MachineRecord]) -> float:
    """Dollars an hour of the machines that cost money now, without requests that wait for capacity."""
    return hourly_cost(machine for machine in machines if machine.billed_at is not None)


def affordable(spec: ProvisioningSpec, machines: Iterable[MachineRecord], price: float | None) -> float:
    """The number of further machines of this price that the limit allows; 0 if there is a limit and no known price."""
    if spec.max_hourly_cost is None:
        return math.inf
    if price is None:
        return 0
    if price <= 0:
        return math.inf
    left = spec.max_hourly_cost - hourly_cost(machines)
    return max(math.floor(left / price + ROUNDING), 0)
