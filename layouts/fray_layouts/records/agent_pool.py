"""The record of a pool of agents: what they are to do before any job comes."""

from __future__ import annotations

import msgspec

from fray_layouts.records.base import Record
from fray_layouts.records.machine import ProvisioningSpec
from fray_layouts.spec import EnvironmentSpec


class AgentPoolRecord(Record, kw_only=True):
    """`pools/<pool>/pool.json`: what a pool of agents is told; absent while it is told nothing.

    Attributes:
        environments: each of its agents makes them ready, in this order, before it claims. They have no variables.
        provisioning: how its machines are made; None: people start its agents.
    """

    environments: list[EnvironmentSpec] = msgspec.field(default_factory=list)
    provisioning: ProvisioningSpec | None = None
