"""Asking an agent to look at its jobs. Losing mail costs latency only: agents look on the repair interval anyway."""

from __future__ import annotations

from fray_layouts import names
from fray_layouts.records import AgentRecord

from fray_coordinator.core import Core
from fray_coordinator.protocol.heartbeat import ask_to_drain, post


async def notify(core: Core, agent_id: str) -> None:
    """Put mail into the agent's record, unless some lies there unread or nobody will read it."""
    await core.records.update(names.Agents.key(agent_id), AgentRecord, lambda agent: post(agent) if agent else None)


async def drain(core: Core, agent_id: str) -> bool:
    """Ask the agent to take no more work and to leave when it has none; False if there is no such live agent."""
    key = names.Agents.key(agent_id)
    update = await core.records.update(key, AgentRecord, lambda agent: ask_to_drain(agent) if agent else None)
    return update.stored is not None and update.stored.record.drain
