"""Memberships of agents that do not run, for tests of single parts of an agent."""

from __future__ import annotations

import math

from fray_agents.agent.leases import Leases
from fray_agents.agent.membership import Membership
from fray_coordinator.core import Core
from fray_layouts.records import AgentRecord, Resources


def trusted_member(core: Core, capacity: Resources, live_agents: int = 1, pool_slots: int = 1) -> Membership:
    """An agent that may always claim."""
    record = AgentRecord(id="agent", host="host", pool="default", capacity=capacity, free=capacity)
    leases = Leases(capacity)
    return Membership(
        core, record, leases, trusted_until=math.inf, promised=0.0, live_agents=live_agents, pool_slots=pool_slots
    )
