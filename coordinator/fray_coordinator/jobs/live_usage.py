"""The present resource usage of jobs and free resources of agents, as agents report them.

An agent writes both into its record with every beat. One of a private cluster beats only when it is asked to.
"""

from __future__ import annotations

from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.jobs.lookup import read_agents, read_job
from fray_coordinator.jobs.mailbox import post_mail
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import AgentKeys
from fray_layouts.records import AgentRecord, ResourceUsage
from fray_layouts.states import AgentState

FRESH_SECONDS = 1.0
"""Seconds after which what an agent said is asked for again, where agents hear of that at once: on local files."""

REFRESH_TIMEOUT = 1.0
"""Seconds that it is waited for then."""


async def job_usage(core: Core, job_id: str) -> ResourceUsage | None:
    """The resource usage of the job's current or last attempt; None where it is not known.

    Raises:
        JobNotFound: there is no such job.
    """
    job = (await read_job(core, job_id)).record
    if job.lease is None or job.exit is not None:
        return job.exit.usage if job.exit is not None else None
    agent = await core.records.read(AgentKeys.key(job.lease.agent), AgentRecord)
    holding = (await _refreshed(core, agent)).record.holdings.get(job.id) if agent is not None else None
    return holding.usage if holding is not None else None


async def refreshed_agents(core: Core) -> list[Stored[AgentRecord]]:
    """The records of all agents that can be read, with the resources that are free now."""
    return await map_concurrently(await read_agents(core, problems={}), lambda agent: _refreshed(core, agent))


async def _refreshed(core: Core, agent: Stored[AgentRecord]) -> Stored[AgentRecord]:
    """The record, or a later one if it is old and its agent answers soon. A driver has nothing to report."""
    is_asked = core.store.local and agent.record.state == AgentState.LIVE and not agent.record.driver
    if not is_asked or core.now() - agent.updated <= FRESH_SECONDS:
        return agent
    await post_mail(core, agent.record.id)
    until = core.clock.boottime() + REFRESH_TIMEOUT
    while core.clock.boottime() < until:
        await core.clock.sleep(core.settings.poll_interval)
        try:
            found = await core.records.reread(agent)
        except BadRecord:
            return agent
        if found is None or found.record.beat != agent.record.beat:
            return found or agent
    return agent
