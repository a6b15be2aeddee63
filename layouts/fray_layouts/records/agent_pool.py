"""The record of a pool of agents: the environments to prepare, and how its machines are made."""

from __future__ import annotations

import msgspec

from fray_layouts.bounds import Interval
from fray_layouts.records.base import Record
from fray_layouts.records.machine import ProvisioningSpec
from fray_layouts.spec import EnvironmentSpec

DEFAULT_HOLD_LIMIT = 6 * 3600.0
"""Longer than most jobs take, so that a gang seldom loses its turn to a job that has nothing to do with it."""


class AgentPoolRecord(Record, kw_only=True):
    """`pools/<pool>/pool.json`: settings of a pool of agents; absent if the pool has none.

    Attributes:
        environments: each agent prepares them, in this order, before it claims. They have no variables.
        provisioning: how the pool's machines are made; None if people start its agents.
        hold_limit: seconds for which an owner of a placement waits with members before jobs for whose end it may be
            waiting, though no record says so, are let in on its hosts.
    """

    environments: list[EnvironmentSpec] = msgspec.field(default_factory=list)
    provisioning: ProvisioningSpec | None = None
    hold_limit: Interval = DEFAULT_HOLD_LIMIT

    def check(self) -> None:
        """Raise InvalidInput if the numbers of machines contradict one another."""
        if self.provisioning is not None:
            self.provisioning.check("provisioning")
