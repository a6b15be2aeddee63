"""What requests cost: estimated from the settings, and counted by the agents themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from fray_agents.claimer import PAID_PACE
from fray_coordinator.store.metering import GCS, Usage
from fray_layouts.records import AgentRecord, Settings

MONTH = 30 * 86400.0
JOB_CLASS_A = 7
JOB_CLASS_B = 8
"""Requests for one small command job beside heartbeats, counted by a test of the agent."""

PASS_CLASS_A = 3
REPAIR_CLASS_A = 5
"""Lists of the inbox and the agents and the lease's renewal; one more renewal, and lists of jobs, index, children and
endpoints (up to 1,000 rows)."""


@dataclass(frozen=True)
class Line:
    """Requests of both price classes, and what they cost in dollars."""

    what: str
    class_a: float
    class_b: float

    @property
    def dollars(self) -> float:
        return (self.class_a * GCS.class_a + self.class_b * GCS.class_b) / 1000


def estimates(settings: Settings) -> list[Line]:
    """What the settings lead to."""
    slowest = PAID_PACE[2]
    bells = MONTH / (settings.poll_interval * slowest)
    lists = MONTH / settings.repair_interval
    mail = MONTH / settings.poll_interval
    leases = MONTH / settings.pass_interval
    passes = MONTH / settings.pass_interval * PASS_CLASS_A + lists * REPAIR_CLASS_A
    return [
        Line("an idle agent, a month", MONTH / settings.idle_beat_interval + lists, bells + leases),
        Line("a busy agent beside its jobs, a month", MONTH / settings.beat_interval + lists, bells + leases + mail),
        Line("a driver beside its actors, a month", MONTH / settings.beat_interval, lists),
        Line("the coordinator's pass, a month, once a cluster", passes, 0.0),
        Line("1,000 small jobs", 1000.0 * JOB_CLASS_A, 1000.0 * JOB_CLASS_B),
    ]


def spent(agents: Iterable[AgentRecord]) -> list[Line]:
    """What agents have asked for since they started, as their last beats say."""
    known = list(agents)
    total = Usage()
    for agent in known:
        total += Usage(**{kind: agent.requests.get(kind, 0) for kind in asdict(total)})
    kept = f"these {len(known)} agents so far" if len(known) != 1 else "this agent so far"
    return [Line(kept, total.class_a, total.class_b)] if known else []
