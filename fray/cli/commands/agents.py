"""`fray agents`: list the agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from fray.cli import output
from fray.cli.agent_view import Hold, conflicts, holds_of, jobs_at_work, place_text
from fray.cli.app import App, as_command
from fray_layouts.states import AgentState
from fray_layouts.units import format_duration

if TYPE_CHECKING:
    from fray_coordinator.core import Core
    from fray_coordinator.protocol.placements.owners import Owner
    from fray_coordinator.store.records import Stored
    from fray_layouts.records import AgentRecord

_COLUMNS = ("AGENT", "POOL", "STATE", "HEARTBEAT", "JOBS", "GPUS", "FREE", "CAPACITY", "PLACE", "KEPT FOR", "PROBLEM")


@as_command
@click.option("--all", "-a", "everything", is_flag=True, help="Also agents that have left or died.")
def command(app: App, everything: bool) -> None:
    """List the agents: what they run, what they have free, and for which gangs and reservations they keep it."""
    problems: dict[str, str] = {}
    agents, owners, now = app.run(lambda core: _find(core, problems))
    app.warn(problems)
    agents = [agent for agent in agents if not agent.record.driver]
    wrong = conflicts([agent.record for agent in agents if _state(agent, now) in ("live", "unfit")])
    shown = [agent for agent in agents if everything or agent.record.state == AgentState.LIVE]
    views = [_AgentView(agent, owners, wrong.get(agent.record.id, ""), now) for agent in shown]
    rows = [view.row() for view in views]
    empty = "no agent is live; start one with `fray agent`"
    app.show([view.json() for view in views], lambda: output.print_table(_COLUMNS, rows, empty))


async def _find(core: Core, problems: dict[str, str]) -> tuple[list[Stored[AgentRecord]], list[Owner], float]:
    from fray_coordinator.jobs.lookup import read_agents
    from fray_coordinator.placements.tables import OwnerTable

    owners = OwnerTable(core)
    await owners.refresh()
    problems |= owners.problems
    in_order = sorted(owners.owners().values(), key=lambda owner: owner.order)
    return await read_agents(core, problems), in_order, core.now()


def _state(agent: Stored[AgentRecord], now: float) -> str:
    from fray_coordinator.jobs.lookup import is_silent

    record = agent.record
    if record.state != AgentState.LIVE:
        return record.state
    if is_silent(agent, now):
        return "silent"
    return "draining" if record.drain else "unfit" if record.unfit else "live"


@dataclass(frozen=True, slots=True)
class _AgentView:
    """One agent, for display.

    Attributes:
        owners: gangs and reservations that have not ended, in order.
        conflict: how it contradicts another agent; "" if it does not.
    """

    agent: Stored[AgentRecord]
    owners: list[Owner]
    conflict: str
    now: float

    @property
    def holds(self) -> list[Hold]:
        return holds_of(self.agent.record, self.owners)

    @property
    def problem(self) -> str:
        return "; ".join(filter(None, [self.agent.record.problem, self.conflict]))

    def json(self) -> dict[str, Any]:
        from fray.cli.job_view import record_json

        return {
            **record_json(self.agent.record),
            "state": _state(self.agent, self.now),
            "last_beat": self.agent.updated,
            "kept_for": [hold.json() for hold in self.holds],
            "problem": self.problem,
        }

    def row(self) -> tuple[str, ...]:
        from fray.cli.job_view import resources_text

        record = self.agent.record
        kinds = ", preemptible" * record.preemptible + ", no actors" * (not record.inbound)
        return (
            record.id,
            record.pool,
            _state(self.agent, self.now),
            f"{format_duration(self.now - self.agent.updated)} ago",
            str(jobs_at_work(record, self.owners)),
            _gpus(record),
            resources_text(record.free),
            resources_text(record.capacity) + kinds,
            place_text(record),
            "; ".join(hold.text(self.now) for hold in self.holds),
            self.problem,
        )


def _gpus(agent: AgentRecord) -> str:
    """The agent's GPUs that are in use, and by which jobs, in order of their submission."""
    jobs: dict[int, list[str]] = {}
    for job in sorted(agent.holdings):
        for place in agent.holdings[job].gpus:
            jobs.setdefault(place, []).append(job)
    return "; ".join(f"{place}: {', '.join(jobs[place])}" for place in sorted(jobs))
