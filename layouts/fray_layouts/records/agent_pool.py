"""The record of a pool of agents: the environments to prepare, and how its machines are made."""

from __future__ import annotations

import msgspec

from fray_layouts.records.base import Record
from fray_layouts.records.machine import ProvisioningSpec
from fray_layouts.spec import EnvironmentSpec


class AgentPoolRecord(Record, kw_only=True):
    """`pools/<pool>/pool.json`: settings of a pool of agents; absent if the pool has none.

    Attributes:
        environments: each agent prepares them, in this order, before it claims. They have no variables.
        provisioning: how the pool's machines are made; None if people start its agents.
    """

    environments: list[EnvironmentSpec] = msgspec.field(default_factory=list)
    provisioning: ProvisioningSpec | None = None
