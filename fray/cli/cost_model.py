"""The cost of machines and of requests to the storage: an estimate from the settings, and what agents have counted."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from fray_agents.agent.claimer import IDLE_POLL, REMOTE_POLL_BACKOFF
from fray_agents.agent.reconciler_loop import QUIET_POLLS
from fray_coordinator.protocol.role_lease import QUIET_INTERVALS
from fray_coordinator.protocol.scaling.shares import billed_now, cost_so_far
from fray_coordinator.store.metering import GCS_PRICES, RequestCounts
from fray_layouts.records import AgentRecord, ClusterSettings, MachineRecord
from fray_layouts.states import MachineState
from fray_layouts.units import format_bytes

SECONDS_PER_MONTH = 30 * 86400.0

JOB_CLASS_A = 7
JOB_CLASS_B = 8
"""Requests of each price class for one small command job, without heartbeats; a test of the agent counts them."""

PASS_CLASS_A = 3
QUIET_PASS_CLASS_A = 4
REPAIR_CLASS_A = 8
"""Writes and lists of a pass and of a repair. A pass lists the inbox and the agents, and renews the lease; in a quiet
cluster it also lists `pending/`. A repair
renews the lease once more, and makes seven lists: of jobs, their indexes, children, endpoints and reservations (of up
to 1,000 rows each)."""


@dataclass(frozen=True)
class CostLine:
    """A line of `fray cost`: requests of both price classes, writes and lists (A) and reads (B), or machines.

    other: the dollars that machines or stored bytes cost.
    """

    what: str
    class_a: float = 0.0
    class_b: float = 0.0
    other: float = 0.0

    @property
    def dollars(self) -> float:
        return (self.class_a * GCS_PRICES.class_a + self.class_b * GCS_PRICES.class_b) / 1000 + self.other


def estimates(settings: ClusterSettings) -> list[CostLine]:
    """Estimate the requests that a cluster with these settings sends to the storage."""
    slowest = REMOTE_POLL_BACKOFF[2]
    doorbells = SECONDS_PER_MONTH / (settings.poll_interval * slowest)
    lists = SECONDS_PER_MONTH / settings.repair_interval
    mail = SECONDS_PER_MONTH / settings.poll_interval
    leases = SECONDS_PER_MONTH / settings.pass_interval
    passes = SECONDS_PER_MONTH / settings.pass_interval * PASS_CLASS_A + lists * REPAIR_CLASS_A
    beats = SECONDS_PER_MONTH / settings.idle_beat_interval
    quiet_pass = min(max(settings.idle_beat_interval, settings.pass_interval), QUIET_INTERVALS * settings.pass_interval)
    quiet_passes, quiet_lists = SECONDS_PER_MONTH / quiet_pass, lists / QUIET_INTERVALS
    quiet_bell = SECONDS_PER_MONTH / (settings.poll_interval * QUIET_POLLS)
    return [
        CostLine("an idle agent, a month", beats + lists, doorbells + leases),
        CostLine(
            "an idle agent of a quiet cluster, a month",
            beats + quiet_lists,
            SECONDS_PER_MONTH / (settings.poll_interval * IDLE_POLL) + quiet_passes + beats,
        ),
        CostLine(
            "a busy agent beside its jobs, a month",
            SECONDS_PER_MONTH / settings.beat_interval + lists,
            doorbells + leases + mail,
        ),
        CostLine("a driver beside its actors, a month", SECONDS_PER_MONTH / settings.beat_interval, lists),
        CostLine("the coordinator's pass, a month, once a cluster", passes, 0.0),
        CostLine(
            "the coordinator's pass of a quiet cluster, a month, once a cluster",
            quiet_passes * QUIET_PASS_CLASS_A + lists + quiet_lists * REPAIR_CLASS_A,
            quiet_bell,
        ),
        CostLine("1,000 small jobs", 1000.0 * JOB_CLASS_A, 1000.0 * JOB_CLASS_B),
    ]


def spent(agents: Iterable[AgentRecord]) -> list[CostLine]:
    """Sum up the requests of agents since they started, as their last heartbeats report them."""
    known = list(agents)
    total = RequestCounts()
    for agent in known:
        total += RequestCounts(**{kind: agent.requests.get(kind, 0) for kind in asdict(total)})
    kept = f"these {len(known)} agents so far" if len(known) != 1 else "this agent so far"
    if not known:
        return []
    lines = [CostLine(kept, total.class_a, total.class_b)]
    if total.log_bytes:
        stored = f"the {format_bytes(total.log_bytes)} of logs that they stored, a month"
        lines.append(CostLine(stored, other=total.log_bytes / 10**9 * GCS_PRICES.gigabyte_month))
    return lines


def machine_lines(machines: Iterable[MachineRecord], now: float) -> list[CostLine]:
    """For each pool, what its machines cost an hour now, and what they have cost so far by their records."""
    pools: dict[str, list[MachineRecord]] = {}
    for machine in machines:
        pools.setdefault(machine.pool, []).append(machine)
    lines: list[CostLine] = []
    for pool, found in sorted(pools.items()):
        there = [machine for machine in found if machine.state != MachineState.GONE]
        spent_so_far = sum(cost_so_far(machine, now) or 0.0 for machine in found)
        lines += [
            CostLine(f"machines of pool {pool}, an hour now{_unknown(there)}", other=billed_now(there)),
            CostLine(f"machines of pool {pool} so far{_unknown(found)}", other=spent_so_far),
        ]
    return lines


def _unknown(machines: Iterable[MachineRecord]) -> str:
    """Says that machines of unknown price are left out; "" if all prices are known."""
    return ", without those of unknown price" if any(machine.hourly_cost is None for machine in machines) else ""
