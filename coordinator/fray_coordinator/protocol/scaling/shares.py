"""The costs of machines, and the shares of jobs in them.

Each job pays for the part of its hosts that it asked for, while it ran there. Attempts that a job's record no longer
lists count as if they had cost as much an hour as the attempts that it still lists, without the last. Agents whose
records are gone are left out: they are removed no sooner than the jobs that they ran.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fray_layouts.records import AgentRecord, JobRecord, MachineRecord, ProvisioningSpec
from fray_layouts.spec import JobSpec
from fray_layouts.states import MachineState

ROUNDING = 1e-9
"""The tolerance when a sum of prices is compared with a limit, since 0.1 + 0.2 is more than 0.3 in floats."""


def cost_so_far(machine: MachineRecord, now: float) -> float | None:
    """Dollars from the time when the provider began to bill the machine until it was gone; None if nobody knows."""
    if machine.hourly_cost is None:
        return None
    if machine.billed_at is None:
        return 0.0
    ended = machine.ended_at if machine.ended_at is not None else now
    return max(ended - machine.billed_at, 0.0) / 3600.0 * machine.hourly_cost


def hourly_cost(machines: Iterable[MachineRecord]) -> float:
    """Dollars an hour of the machines that are not gone. Intents count as if they were there."""
    return sum(m.hourly_cost or 0.0 for m in machines if m.state != MachineState.GONE)


def billed_now(machines: Iterable[MachineRecord]) -> float:
    """Dollars an hour of the machines that cost money now, without requests that wait for capacity."""
    return hourly_cost(machine for machine in machines if machine.billed_at is not None)


def affordable(spec: ProvisioningSpec, machines: Iterable[MachineRecord], price: float | None) -> float:
    """The number of further machines of this price that the limit allows; 0 if there is a limit and no known price."""
    if spec.max_hourly_cost is None:
        return math.inf
    if price is None:
        return 0
    if price <= 0:
        return math.inf
    left = spec.max_hourly_cost - hourly_cost(machines)
    return max(math.floor(left / price + ROUNDING), 0)


@dataclass(frozen=True, slots=True)
class MachineShare:
    """Dollars that somebody's use of machines has cost so far, and costs an hour now."""

    so_far: float = 0.0
    hourly: float = 0.0

    def __add__(self, other: MachineShare) -> MachineShare:
        return MachineShare(self.so_far + other.so_far, self.hourly + other.hourly)


def shares_of_jobs(
    jobs: Iterable[JobRecord], agents: Iterable[AgentRecord], machines: Iterable[MachineRecord], now: float
) -> dict[str, MachineShare]:
    """The share of each job. Jobs that never ran on a machine with a price are left out."""
    prices = {
        (machine.pool, machine.name): machine.hourly_cost / max(machine.hosts, 1)
        for machine in machines
        if machine.hourly_cost
    }
    hosts = {agent.id: agent for agent in agents if (agent.pool, agent.machine) in prices}
    costs = {name: prices[agent.pool, agent.machine] for name, agent in hosts.items()}
    found: dict[str, MachineShare] = {}
    for job in jobs:
        for stay in _stays(job, now):
            if (agent := hosts.get(stay.agent)) is not None:
                hourly = costs[agent.id] * stay.bundles * _share_of_host(job.spec, agent)
                seconds = stay.seconds * stay.weight
                spent = MachineShare(hourly * seconds / 3600.0, hourly if stay.lasts else 0.0)
                found[job.id] = found.get(job.id, MachineShare()) + spent
    return found


def sums_by_owner(shares: Mapping[str, MachineShare], owners: Mapping[str, str]) -> dict[str, MachineShare]:
    """The sums of the jobs' shares by owner. owners: the owner of each job."""
    sums: dict[str, MachineShare] = {}
    for job, share in shares.items():
        sums[owners[job]] = sums.get(owners[job], MachineShare()) + share
    return sums


@dataclass(frozen=True, slots=True)
class _Stay:
    """A time for which a job had bundles on an agent.

    Attributes:
        seconds: how long.
        lasts: the job still has them.
        weight: the factor by which it counts, so that it stands for attempts that are no longer known, too.
    """

    agent: str
    seconds: float
    lasts: bool
    bundles: int = 1
    weight: float = 1.0


def _stays(job: JobRecord, now: float) -> Iterator[_Stay]:
    """The stays of a job.

    Of a gang's earlier attempts only one member is known, so its host stands for the hosts of all replicas.
    """
    listed = [max(past.ended_at - past.started_at, 0.0) for past in job.history]
    weight = 1.0 + job.forgotten_seconds / sum(listed) if sum(listed) > 0 else 1.0
    for past, seconds in zip(job.history, listed, strict=True):
        yield _Stay(past.agent, seconds, False, job.spec.replicas, weight)
    until = now if job.ended_at is None else job.ended_at
    if job.lease is not None:
        yield _Stay(job.lease.agent, max(until - job.lease.since, 0.0), job.ended_at is None)
    if job.placement is not None and job.started_at is not None:
        for member in job.placement.members:
            seconds = max(until - job.started_at, 0.0)
            yield _Stay(member.agent, seconds, job.ended_at is None, len(member.bundles))


def _share_of_host(spec: JobSpec, agent: AgentRecord) -> float:
    """The largest part of any resource of the host that one replica asks for."""
    wants, has = spec.resources, agent.capacity
    parts = [0.0]
    if has.cpu > 0:
        parts.append(wants.cpu * 1000 / has.cpu)
    if has.memory > 0:
        parts.append(wants.memory / has.memory)
    if wants.device is not None and wants.device.kind != "cpu" and has.device_count > 0:
        parts.append(wants.device.count / has.device_count)
    return min(max(parts), 1.0)
