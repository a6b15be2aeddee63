"""`fray ps`: list jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray_layouts.states import AgentState

if TYPE_CHECKING:
    from fray_coordinator.core import Core
    from fray_layouts.records import Holding, JobRecord

_Found = tuple["list[JobRecord]", "dict[str, Holding]", float]


@as_command
@click.option("--all", "-a", "everything", is_flag=True, help="Also finished jobs, until retention removes them.")
def command(app: App, everything: bool) -> None:
    """List the jobs that wait or run."""
    from fray.cli.job_view import JOB_COLUMNS, job_json, job_row, usage_json

    problems: dict[str, str] = {}
    jobs, holdings, now = app.run(lambda core: _find(core, everything, problems))
    app.warn(problems)
    data: list[dict[str, Any]] = [{**job_json(job), "usage": usage_json(holdings.get(job.id))} for job in jobs]
    app.show(data, lambda: output.print_table(JOB_COLUMNS, [job_row(job, holdings.get(job.id), now) for job in jobs]))


async def _find(core: Core, everything: bool, problems: dict[str, str]) -> _Found:
    from fray_coordinator.jobs.lookup import active_jobs, all_jobs, read_agents

    agents = [agent.record for agent in await read_agents(core, problems)]
    jobs = await (all_jobs(core, problems) if everything else active_jobs(core, agents, problems))
    held = {
        job: holding for agent in agents if agent.state == AgentState.LIVE for job, holding in agent.holdings.items()
    }
    return jobs, {job.id: held[job.id] for job in jobs if job.id in held and job.ended_at is None}, core.now()
