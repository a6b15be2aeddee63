"""A pool as one run of the scaler sees it: the facts from which its rules decide."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as changed

from fray_coordinator.protocol.placements.owners import Owner
from fray_coordinator.protocol.scaling.costs import hourly_cost
from fray_coordinator.protocol.scaling.listed import ListedMachine
from fray_coordinator.protocol.scaling.provisioning import Account, account_of_machine
from fray_layouts.index_keys import Shape
from fray_layouts.records import AgentRecord, MachineRecord, ProvisioningSpec, Resources, ZoneAnswer
from fray_layouts.spec import ResourceSpec
from fray_layouts.states import AgentState, MachineState

COMING = frozenset({MachineState.WANTED, MachineState.CREATING})
"""The states of machines that are on their way."""
SERVING = COMING | {MachineState.UP}
"""The states of machines that take work, or will."""


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job, but no gang, that waits to be claimed."""

    id: str
    priority: int
    submitted_at: float
    shape: Shape
    resources: ResourceSpec


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool with machines of its own.

    Attributes:
        machines: by name, those that are not gone, read after `listed`.
        recorded: names of further machines that have records: they are gone, or belong to another account.
        listed: the provider's machines in every zone; None: it did not answer, and nothing may be concluded.
        listed_at: when the list was requested; the list says nothing about later events.
        agents: by id, all of the pool that have records, dead ones and those that left among them.
        silent: ids of live agents whose heartbeats are overdue.
        owners: placements in the pool that have not ended, in whatever phase.
        lacking: the units of held reservations that have lost their hosts and need others, as owners that form.
        jobs: the jobs that wait there.
        zones: answers, as the last run left them.
        hosts: the number of hosts of each machine.
        capacity: of each host; None: nobody knows yet.
        prices: dollars an hour of one machine by zone; None or absent if nobody knows.
        ran_at: when the last run of any scaler ended; 0 if there was none.
    """

    pool: str
    spec: ProvisioningSpec
    machines: Mapping[str, MachineRecord] = field(default_factory=dict)
    recorded: Collection[str] = ()
    listed: Sequence[ListedMachine] | None = ()
    listed_at: float = math.inf
    agents: Mapping[str, AgentRecord] = field(default_factory=dict)
    silent: Collection[str] = ()
    owners: Sequence[Owner] = ()
    lacking: Sequence[Owner] = ()
    jobs: Sequence[WaitingJob] = ()
    zones: Mapping[str, ZoneAnswer] = field(default_factory=dict)
    hosts: int = 1
    capacity: Resources | None = None
    prices: Mapping[str, float | None] = field(default_factory=dict)
    ran_at: float = 0.0

    def agents_by_machine(self) -> dict[str, list[AgentRecord]]:
        """The agents of each machine, by its name."""
        found: dict[str, list[AgentRecord]] = {}
        for agent in self.agents.values():
            if agent.machine:
                found.setdefault(agent.machine, []).append(agent)
        return found

    def forming(self) -> list[Owner]:
        """All owners that wait for hosts: gangs, reservations, and units of reservations."""
        return [owner for owner in (*self.owners, *self.lacking) if owner.forming]

    def beating(self, agents: Iterable[AgentRecord]) -> list[AgentRecord]:
        """The agents that live and have no overdue heartbeat."""
        return [agent for agent in agents if agent.state == AgentState.LIVE and agent.id not in self.silent]


def of_account(view: PoolView, account: Account) -> PoolView:
    """The pool as it is in one account. Machines elsewhere count towards its limits, and are otherwise ignored."""
    others = [machine for machine in view.machines.values() if account_of_machine(machine) != account]
    if not others:
        return view
    spec, limit = view.spec, view.spec.max_hourly_cost
    left = None if limit is None else max(limit - hourly_cost(others), 0.0)
    bounds = changed(spec, max=max(spec.max - len(others), 0), max_hourly_cost=left)
    elsewhere = {machine.name for machine in others}
    return replace(view, spec=bounds, machines={n: m for n, m in view.machines.items() if n not in elsewhere})


def without_unread(view: PoolView, names: Collection[str]) -> PoolView:
    """The pool without the machines whose records cannot be read.

    They are left alone, and count at the highest price.
    """
    if not names:
        return view
    spec, count = view.spec, len(names)
    dearest = max((price for price in view.prices.values() if price is not None), default=0.0)
    left = None if spec.max_hourly_cost is None else max(spec.max_hourly_cost - count * dearest, 0.0)
    listed = None if view.listed is None else [known for known in view.listed if known.name not in names]
    bounds = changed(spec, min=max(spec.min - count, 0), max=max(spec.max - count, 0), max_hourly_cost=left)
    machines = {name: machine for name, machine in view.machines.items() if name not in names}
    return replace(view, listed=listed, machines=machines, spec=bounds)
