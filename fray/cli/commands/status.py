"""`fray status`: describe a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fray.cli import output
from fray.cli.app import App, as_command

if TYPE_CHECKING:
    from fray_coordinator.core import Core
    from fray_layouts.records import Holding, JobRecord

_Found = tuple["JobRecord", "Holding | None", list[str], float]


@as_command
@click.argument("job")
def command(app: App, job: str) -> None:
    """Describe JOB, named by its id, the beginning of its id, or its name."""
    from fray.cli.job_view import describe, job_json, usage_json

    record, holding, waiting, now = app.run(lambda core: _find(core, job))
    data = {**job_json(record), "usage": usage_json(holding), "waiting": waiting}
    app.show(data, lambda: output.print_pairs(describe(record, holding, waiting, now)))


async def _find(core: Core, text: str) -> _Found:
    from fray_coordinator.jobs.lookup import find_job, live_agents, refreshed_agents
    from fray_coordinator.jobs.why_waiting import why_stuck, why_waiting
    from fray_layouts.object_keys import AgentKeys
    from fray_layouts.records import AgentRecord

    job = (await find_job(core, text)).record
    holding, waiting = None, []
    if job.ended_at is None and job.lease is not None:
        agent = await core.records.read(AgentKeys.key(job.lease.agent), AgentRecord)
        holding = agent.record.holdings.get(job.id) if agent else None
        waiting = list(filter(None, [why_stuck(job, live_agents([agent] if agent else [], core.now()))]))
    elif job.ended_at is None:
        live = live_agents(await refreshed_agents(core), core.now())
        waiting = [why_waiting(job, live, core.now())]
    return job, holding, waiting, core.now()
