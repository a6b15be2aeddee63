"""A pool as one run of the scaler sees it: its machines, its zones, and the facts from which the rules decide.

Zones: where machines are requested, after what zones have answered.

**Invariant.** A zone that refused is avoided for a while, longer each time, and no other zone waits for it.

**Unsafe sequence.**

1. Zone A has no capacity, and zone B has some.
2. Each run of the scaler asks A again.
3. B is never asked.

**Why this cannot happen.** A refusal is recorded before anything is decided again, and decisions take the first zone
that is not avoided. The record of a refusal is dropped once the zone gives a machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from msgspec.structs import replace as changed

from fray_coordinator.backoff import exponential_wait
from fray_coordinator.protocol.placements.owners import Owner
from fray_coordinator.protocol.scaling.provisioning import Account, account_of_machine
from fray_coordinator.protocol.scaling.shares import hourly_cost
from fray_layouts.index_keys import Shape
from fray_layouts.records import AgentRecord, MachineRecord, ProvisioningSpec, Resources, ZoneAnswer
from fray_layouts.spec import ResourceSpec
from fray_layouts.states import AgentState, MachineState

BOOT_FAILURE = "boot-failure"
"""The kind of answer of a zone in which a machine never got its agents."""

PAUSES = {"stockout": 60.0, "quota": 120.0, "denied": 120.0, "invalid": 300.0, "unavailable": 10.0, BOOT_FAILURE: 300.0}
"""Seconds for which a zone is avoided after its first answer of each kind; each further answer doubles them."""

FIRST_PAUSE = 60.0
"""Seconds for which a zone is avoided after an answer of a kind that this version does not know."""

LONGEST_PAUSE = 1800.0
"""Seconds for which a zone is avoided at most: capacity comes back, and one request every half hour costs nothing."""

REMEMBERED = 3600.0
"""Seconds after the end of a pause within which another answer of the same kind still counts as one in a row."""


def open_zones(spec: ProvisioningSpec, zones: Mapping[str, ZoneAnswer], now: float) -> list[str]:
    """The zones that may be asked, the preferred one first; [""] for a provider without zones."""
    return [zone for zone in spec.zones or [""] if zone not in zones or zones[zone].until <= now]


def refusal(before: ZoneAnswer | None, kind: str, text: str, now: float) -> ZoneAnswer:
    """The record of a zone that has just refused."""
    times = before.times + 1 if before is not None and before.kind == kind else 1
    pause = exponential_wait(times, PAUSES.get(kind, FIRST_PAUSE), LONGEST_PAUSE)
    return ZoneAnswer(kind=kind, text=text, at=now, until=now + pause, times=times)


def with_refusal(
    zones: Mapping[str, ZoneAnswer], zone: str, kind: str, text: str, asked_at: float, now: float
) -> Mapping[str, ZoneAnswer]:
    """The zones' answers with a refusal of a request that was made at `asked_at`.

    If several requests were on their way when a zone first refused, only that refusal counts: the zone has no room, and
    that is one fact.
    """
    before = zones.get(zone)
    return zones if before is not None and before.at >= asked_at else {**zones, zone: refusal(before, kind, text, now)}


def remembered(zones: Mapping[str, ZoneAnswer], granted: Sequence[str], now: float) -> dict[str, ZoneAnswer]:
    """The answers that still count: neither old ones nor those of zones that have given a machine since."""
    return {zone: answer for zone, answer in zones.items() if zone not in granted and now <= answer.until + REMEMBERED}


def place_of(provider: str, zone: str) -> tuple[str, str]:
    """The zone and the region that agents there report; "" for each that they do not report."""
    if provider == "local":
        return "", ""
    if provider == "cloud_run":
        return "", zone
    return zone, re.sub(r"-[a-z]$", "", zone)


class ListedState(StrEnum):
    """What a provider says about a machine in its list: `ListedMachine.state`."""

    WAITING = "waiting"
    """It was asked for, and there is no capacity for it yet."""
    CREATING = "creating"
    """It is being made."""
    READY = "ready"
    ENDING = "ending"
    """It is being deleted."""
    LOST = "lost"
    """Preempted, failed, stopped or repaired: it will have no agent again, and must be deleted."""


@dataclass(frozen=True, slots=True)
class ListedMachine:
    """A machine of this cluster in its provider's list.

    Attributes:
        pool, name: those of `MachineRecord`, from the machine's labels.
        zone: where it is.
        billed: the provider bills it.
        batch: the batch of its request, from its labels.
        copy_of: the machine that a repeated request made once more, as this one; "" if it is no such copy.
        error: the provider's own words if they say why it is lost or waits.
        error_kind: the kind of the error, as in `ZoneAnswer.kind`; "" if there is no error.
    """

    pool: str
    name: str
    zone: str
    state: ListedState
    batch: str = ""
    operation: str = ""
    error: str = ""
    error_kind: str = ""
    billed: bool = True
    copy_of: str = ""


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
