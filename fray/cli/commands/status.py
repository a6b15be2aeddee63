"""`fray status`: describe a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fray.cli import output
from fray.cli.app import App, as_command

if TYPE_CHECKING:
    from fray.cli.job_view import Members
    from fray_coordinator.core import Core
    from fray_coordinator.store.records import Stored
    from fray_layouts.records import AgentRecord, Holding, JobRecord


@as_command
@click.argument("job")
def command(app: App, job: str) -> None:
    """Describe JOB, given by its id, the beginning of its id, or its name."""
    from fray.cli.job_view import describe, gang_json, job_json, usage_json
    from fray_layouts.spec import is_gang

    record, holding, members, waiting, now = app.run(lambda core: _find(core, job))
    data = {**job_json(record), "usage": usage_json(holding), "waiting": waiting}
    if is_gang(record.spec):
        data |= gang_json(record, members)
    app.show(data, lambda: output.print_pairs(describe(record, holding, members, waiting, now)))


async def _find(core: Core, text: str) -> tuple[JobRecord, Holding | None, Members, list[str], float]:
    """The job, what its agents report about it, why it waits, and the storage's time."""
    from fray.cli.job_view import Members, as_one
    from fray_coordinator.jobs.commit import stored_exits
    from fray_coordinator.jobs.lookup import find_job, live_agents, refreshed_agents
    from fray_coordinator.jobs.why_machines import machines_for
    from fray_coordinator.jobs.why_waiting import reservations_around, why_stuck, why_waiting
    from fray_coordinator.protocol.stopping import holders_of
    from fray_coordinator.protocol.transitions import is_waiting
    from fray_layouts.spec import is_gang

    job = (await find_job(core, text)).record
    exits = await stored_exits(core, job) if is_gang(job.spec) else {}
    if job.ended_at is not None:
        return job, None, Members(exits=exits), [], core.now()
    agents = await (refreshed_agents(core) if is_waiting(job) else _agents(core, holders_of(job)))
    live = live_agents(agents, core.now())
    unstarted = [job] if is_waiting(job) else []
    around = await reservations_around(core, unstarted)
    machines = await machines_for(core, unstarted, around)
    why = why_waiting(job, live, core.now(), around, machines) if is_waiting(job) else why_stuck(job, live)
    waiting = [why] if why else []
    heard = live if is_waiting(job) else [agent.record for agent in agents]
    holdings = {agent.id: agent.holdings[job.id] for agent in heard if job.id in agent.holdings}
    holding = as_one(list(holdings.values())) if holdings and not is_waiting(job) else None
    return job, holding, Members(holdings=holdings, exits=exits), waiting, core.now()


async def _agents(core: Core, ids: list[str]) -> list[Stored[AgentRecord]]:
    from fray_coordinator.concurrency import map_concurrently
    from fray_layouts.object_keys import AgentKeys
    from fray_layouts.records import AgentRecord

    found = await map_concurrently(ids, lambda agent: core.records.read(AgentKeys.key(agent), AgentRecord))
    return [agent for agent in found if agent is not None]
