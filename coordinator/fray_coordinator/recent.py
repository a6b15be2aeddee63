"""What agents say of themselves now: what their jobs use, and what they have free.

An agent tells it in its record, with every beat. One of a private cluster beats only when it is asked to.
"""

from __future__ import annotations

from fray_coordinator.core import Core, each
from fray_coordinator.errors import BadRecord
from fray_coordinator.lookup import read_agents, read_job
from fray_coordinator.mail import notify
from fray_coordinator.records import Stored
from fray_layouts.names import Agents
from fray_layouts.records import AgentRecord, Usage

OLD = 1.0
"""Seconds after which what an agent said is asked for again, where agents hear of that at once: on local files."""

PATIENCE = 1.0
"""Seconds that it is waited for then."""


async def usage_of(core: Core, job_id: str) -> Usage | None:
    """What the job's attempt uses, or used once the job has ended; None where that is not known.

    Raises:
        JobNotFound: there is no such job.
    """
    job = (await read_job(core, job_id)).record
    if job.lease is None or job.exit is not None:
        return job.exit.usage if job.exit is not None else None
    agent = await core.records.read(Agents.key(job.lease.agent), AgentRecord)
    holding = (await _anew(core, agent)).record.holdings.get(job.id) if agent is not None else None
    return holding.usage if holding is not None else None


async def agents_now(core: Core) -> list[Stored[AgentRecord]]:
    """Every agent's record that can be read, with what the agent has free."""
    return await each(await read_agents(core, problems={}), lambda agent: _anew(core, agent))


async def _anew(core: Core, agent: Stored[AgentRecord]) -> Stored[AgentRecord]:
    """The record, or a later one if it is old and its agent answers soon. A driver has nothing to tell."""
    is_asked = core.store.local and agent.record.state == "live" and not agent.record.driver
    if not is_asked or core.now() - agent.updated <= OLD:
        return agent
    await notify(core, agent.record.id)
    until = core.clock.boottime() + PATIENCE
    while core.clock.boottime() < until:
        await core.clock.sleep(core.settings.poll_interval)
        try:
            found = await core.records.reread(agent)
        except BadRecord:
            return agent
        if found is None or found.record.beat != agent.record.beat:
            return found or agent
    return agent
