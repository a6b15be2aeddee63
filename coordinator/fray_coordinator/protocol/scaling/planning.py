"""Planning: which further machines a pool should have, and which it releases.

**Invariant.** No request is made while the pool's records are more than `max` or cost more than `max_hourly_cost`. No
machine is released on which something runs, is promised a place, or waits for it.

**Unsafe sequence.**

1. Scalers A and B both count three machines, of at most four.
2. Each writes an intent for one more, and requests it.
3. The pool has five.

Or: a machine is idle, a job is claimed on it, and the machine is deleted with the job.

**Why this cannot happen.** A scaler first writes the records of the machines that it wants, then lists all records, and
requests only what is within the bounds (`confirmed`). A scaler that finds intents of another one does the same. Take
all machines that exist at one time: the scaler that requested the one whose record was written last had listed the
records after that, and so it counted all others. And an idle machine is drained before it is deleted: it is deleted
when its agents have left, and they leave only when they hold nothing. A machine that is needed again and again stays,
because only an unbroken idle time counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace as replace_view

from msgspec.structs import replace

from fray_coordinator.protocol.scaling.demand import Order, demand
from fray_coordinator.protocol.scaling.machines import abandoned, deleted
from fray_coordinator.protocol.scaling.provisioning import account_of
from fray_coordinator.protocol.scaling.shares import ROUNDING, affordable, hourly_cost
from fray_coordinator.protocol.scaling.view import COMING, SERVING, ListedState, PoolView, open_zones, refusal
from fray_layouts.records import MachineRecord, PoolScaling, ProvisioningSpec, ZoneAnswer
from fray_layouts.states import AgentState, MachineState

WAIT_SECONDS = 120.0
"""Seconds after which a request that waits for capacity is withdrawn if another zone may be asked. Most requests are
granted within a minute."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for a pool.

    Attributes:
        changed: records to write, by name.
        orders: machines to request, each order in one zone.
        scaling: the pool's part of the scaler's record.
    """

    changed: Mapping[str, MachineRecord]
    orders: tuple[Order, ...]
    scaling: PoolScaling


def plan(view: PoolView, now: float) -> Plan:
    """What to request and what to release. The machines of the view are as `observe` left them."""
    needs = demand(view, now)
    busy = _busy(view)
    serving = [machine for machine in view.machines.values() if machine.state in SERVING]
    needed = needs.used | busy
    orders = list(needs.orders)
    short = view.spec.min - len(serving) - sum(order.count for order in orders)
    if short > 0:
        zones = open_zones(view.spec, view.zones, now)
        orders.append(Order(short, zones[0] if zones else None, reason=f"the pool has at least {view.spec.min}"))
    granted, limit = _within_bounds(view, orders if view.listed is not None else [])
    limit = limit or ("max" if needs.cut else "")
    changed = _released(view, serving, needed, now)
    asked = len(needed & {m.name for m in serving}) + sum(order.count for order in orders)
    scaling = PoolScaling(
        wanted=max(asked, view.spec.min),
        machines=len(view.machines),
        hourly_cost=hourly_cost(view.machines.values()),
        limit=limit,
        zones=dict(view.zones),
        problem="; ".join(f"{name}: {problem}" for name, problem in needs.problems.items()),
    )
    return Plan(changed, tuple(granted), scaling)


def _within_bounds(view: PoolView, orders: Iterable[Order]) -> tuple[list[Order], str]:
    """The orders as far as they are allowed, and what limits the pool.

    Orders for several machines together are granted as a whole or not at all.
    """
    room, spent = view.spec.max - len(view.machines), list(view.machines.values())
    granted: list[Order] = []
    limit = ""
    for order in orders:
        if order.zone is None:
            limit = limit or "zones"
            continue
        price = view.prices.get(order.zone)
        may = affordable(view.spec, spent, price)
        count = int(min(order.count, max(room, 0), may))
        if count < order.count:
            limit = "max" if max(room, 0) <= may else "cost"
            count = 0 if order.together else count
        if count > 0:
            granted.append(Order(count, order.zone, order.together, order.reason))
            room -= count
            spent += [MachineRecord(pool=view.pool, name="new", hourly_cost=price)] * count
    return granted, limit


def withdrawn(view: PoolView, now: float) -> tuple[dict[str, MachineRecord], dict[str, ZoneAnswer]]:
    """The requests that waited too long for capacity while another zone may be asked, and the answers of all zones.

    They are withdrawn before the other zone is asked. If no other zone may be asked they go on waiting, since they are
    served before new requests.
    """
    unserved = {known.name for known in view.listed or () if known.state is ListedState.WAITING}
    late = {
        name: machine
        for name, machine in view.machines.items()
        if name in unserved
        and machine.state == MachineState.CREATING
        and now - (machine.created_at or now) >= WAIT_SECONDS
    }
    zones = dict(view.zones)
    for zone in {machine.zone for machine in late.values()}:
        zones[zone] = refusal(zones.get(zone), "stockout", f"no capacity in {WAIT_SECONDS:.0f} s", now)
    others = {name: machine for name, machine in view.machines.items() if name not in late}
    if not late or not plan(replace_view(view, machines=others, zones=zones), now).orders:
        return {}, dict(view.zones)
    return {
        name: deleted(m, f"there is no capacity in {m.zone}; another zone is asked") for name, m in late.items()
    }, zones


def wanted(view: PoolView, order: Order, names: Sequence[str], now: float) -> list[MachineRecord]:
    """The intents of an order, one for each name. If they are one request, the first name is their batch."""
    spec, zone = view.spec, order.zone or ""
    return [
        MachineRecord(
            pool=view.pool,
            name=name,
            provider=spec.provider,
            project=account_of(spec).project,
            command=spec.command,
            machine_type=spec.machine_type,
            zone=zone,
            spot=spec.spot,
            hosts=view.hosts,
            batch=names[0] if order.together else name,
            batch_size=len(names) if order.together else 1,
            reason=order.reason,
            hourly_cost=view.prices.get(zone),
            wanted_at=now,
        )
        for name in names
    ]


def confirmed(view: PoolView, now: float) -> dict[str, MachineRecord]:
    """The intents to give up, because there are too many records. The view was listed after the intents were written.

    It is called again as long as it returns any: another scaler may have requested one of them first, and then a
    further one must be given up. The youngest intents are given up first, those of one request together.
    """
    there = {name: m for name, m in view.machines.items() if m.state != MachineState.GONE}
    given_up: dict[str, MachineRecord] = {}
    intents = [m for m in there.values() if m.state == MachineState.WANTED]
    for machine in sorted(intents, key=lambda m: (m.batch or m.name, m.name), reverse=True):
        if not _exceeds(view.spec, there.values()):
            break
        batch = machine.batch or machine.name
        for member in [m for m in there.values() if (m.batch or m.name) == batch]:
            if member.state == MachineState.WANTED:
                given_up[member.name] = abandoned(member, "the pool's limits allow no more machines", now)
                del there[member.name]
    return given_up


def _exceeds(spec: ProvisioningSpec, machines: Iterable[MachineRecord]) -> bool:
    there = list(machines)
    limit = math.inf if spec.max_hourly_cost is None else spec.max_hourly_cost + ROUNDING
    return len(there) > spec.max or hourly_cost(there) > limit


def _busy(view: PoolView) -> frozenset[str]:
    """The machines on which something runs or is held, or that a placement names."""
    placed = {member.agent for owner in view.owners for member in owner.placement.members}
    return frozenset(
        agent.machine
        for agent in view.agents.values()
        if agent.machine and agent.state == AgentState.LIVE and (agent.holdings or agent.id in placed)
    )


def _released(
    view: PoolView, serving: Sequence[MachineRecord], needed: frozenset[str], now: float
) -> dict[str, MachineRecord]:
    """The records of machines that are released, and of those that became idle or are idle no more."""
    changed: dict[str, MachineRecord] = {}
    for machine in serving:
        since = None if machine.name in needed else machine.idle_since if machine.idle_since is not None else now
        if since != machine.idle_since:
            changed[machine.name] = replace(machine, idle_since=since)
    current = [changed.get(machine.name, machine) for machine in serving]
    kept, surplus = len(serving), len(serving) - view.spec.max
    for machine in sorted(current, key=lambda m: _release_order(m, current, needed)):
        idle = machine.idle_since is not None and now - machine.idle_since >= view.spec.idle_seconds
        over = surplus > len(serving) - kept
        if over or (idle and kept > view.spec.min):
            reason = "the pool has more than its max" if over else f"idle for {view.spec.idle_seconds:g} s"
            changed[machine.name] = abandoned(machine, reason, now)
            kept -= 1
    return changed


def _release_order(
    machine: MachineRecord, all_of_them: Sequence[MachineRecord], needed: frozenset[str]
) -> tuple[object, ...]:
    """The key by which machines are released: idle before needed, coming before up, whole requests, costly, young."""
    mates = [m for m in all_of_them if m.batch and m.batch == machine.batch]
    whole = all(mate.name not in needed for mate in mates)
    on_its_way = machine.state in COMING
    return machine.name in needed, not on_its_way, not whole, -(machine.hourly_cost or 0.0), -machine.wanted_at
