"""`fray agents`: list the agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray.cli.output import format_duration
from fray_layouts.states import AgentState

if TYPE_CHECKING:
    from fray_coordinator.core import Core
    from fray_coordinator.store.records import Stored
    from fray_layouts.records import AgentRecord

_COLUMNS = ("AGENT", "POOL", "STATE", "HEARTBEAT", "JOBS", "GPUS", "FREE", "CAPACITY", "PROBLEM")


@as_command
@click.option("--all", "-a", "everything", is_flag=True, help="Also those that left or died.")
def command(app: App, everything: bool) -> None:
    """List the agents, what they run and what they have free."""
    problems: dict[str, str] = {}
    agents, now = app.run(lambda core: _find(core, problems))
    app.warn(problems)
    shown = [
        agent for agent in agents if not agent.record.driver and (everything or agent.record.state == AgentState.LIVE)
    ]
    data = [_json(agent, now) for agent in shown]
    app.show(data, lambda: output.print_table(_COLUMNS, [_row(agent, now) for agent in shown]))


async def _find(core: Core, problems: dict[str, str]) -> tuple[list[Stored[AgentRecord]], float]:
    from fray_coordinator.jobs.lookup import read_agents

    return await read_agents(core, problems), core.now()


def _state(agent: Stored[AgentRecord], now: float) -> str:
    from fray_coordinator.jobs.lookup import is_silent

    record = agent.record
    if record.state != AgentState.LIVE:
        return record.state
    return "silent" if is_silent(agent, now) else "draining" if record.drain else "live"


def _json(agent: Stored[AgentRecord], now: float) -> dict[str, Any]:
    from fray.cli.job_view import record_json

    return {**record_json(agent.record), "state": _state(agent, now), "last_beat": agent.updated}


def _row(agent: Stored[AgentRecord], now: float) -> tuple[str, ...]:
    from fray.cli.job_view import resources_text

    record = agent.record
    return (
        record.id,
        record.pool,
        _state(agent, now),
        f"{format_duration(now - agent.updated)} ago",
        str(len(record.holdings)),
        _gpus(record),
        resources_text(record.free),
        resources_text(record.capacity) + ", preemptible" * record.preemptible + ", no actors" * (not record.inbound),
        record.problem,
    )


def _gpus(agent: AgentRecord) -> str:
    """The agent's GPUs that jobs have, and which."""
    jobs: dict[int, list[str]] = {}
    for job, holding in agent.holdings.items():
        for place in holding.gpus:
            jobs.setdefault(place, []).append(job)
    return "; ".join(f"{place}: {', '.join(jobs[place])}" for place in sorted(jobs))
