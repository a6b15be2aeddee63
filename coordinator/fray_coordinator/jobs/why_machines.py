"""Explains in one line for people how a pool's machines matter to a job that waits in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.jobs.pools import read_machines, read_scaler
from fray_coordinator.store.records import record_of
from fray_layouts.object_keys import PoolKeys, ReservationKeys
from fray_layouts.records import (
    AgentPoolRecord,
    AgentRecord,
    JobRecord,
    MachineRecord,
    PoolScaling,
    ProvisioningSpec,
    ReservationRecord,
)
from fray_layouts.states import MachineState
from fray_layouts.units import first_names

UNATTENDED_SECONDS = 300.0
"""Seconds without a run of the scaler after which people are told; runs are far more frequent."""
_COMING = (MachineState.WANTED, MachineState.CREATING)
_SHOWN = 3
"""Machines on the way that are listed by name: more would not fit one line."""


async def machines_for(
    core: Core, jobs: Iterable[JobRecord], around: Mapping[str, ReservationRecord]
) -> dict[str, str]:
    """By pool, a line about its machines for these waiting jobs; pools whose agents people start are left out.

    Costs a read of each pool, and if some have machines, reads of the scaler's record and of the machines'.

    Args:
        around: the reservations and groups that the jobs are in, by id (`reservations_around`): their jobs wait for
            machines of the pool from which the reservation has its hosts.
    """
    named = {job.spec.pool for job in jobs} | {record.pool for record in around.values()}
    pools = {pool for pool in named if not ReservationKeys.of_pool(pool)}

    async def read(pool: str) -> tuple[str, ProvisioningSpec | None]:
        record = record_of(await core.records.read(PoolKeys.record(pool), AgentPoolRecord))
        return pool, record.provisioning if record is not None else None

    found = await map_noting_problems(sorted(pools), read, {})
    specs = {pool: spec for pool, spec in found if spec is not None}
    if not specs:
        return {}
    try:
        scaler = await read_scaler(core)
    except BadRecord as error:
        return dict.fromkeys(specs, f"its pool may have machines, but {error}")
    lines: dict[str, str] = {}
    now = core.now()
    for pool, spec in specs.items():
        machines = [machine.record for machine in await read_machines(core, {}, pool)]
        lines[pool] = about_machines(pool, spec, scaler.pools.get(pool) if scaler is not None else None, machines, now)
    return lines


def with_machines(why: str, pool: str, live: Sequence[AgentRecord], machines: Mapping[str, str]) -> str:
    """Add the line about the pool's machines to the reason of a wait: people need not start agents in such a pool.

    Args:
        live: all live agents, of every pool.
        machines: by pool (`machines_for`).
    """
    if pool not in machines:
        return why
    if not any(agent.pool == pool for agent in live):
        why = f"no live agent in pool {pool}"
    return f"{why}: {machines[pool]}" if machines[pool] else why


def about_machines(
    pool: str, spec: ProvisioningSpec, scaling: PoolScaling | None, machines: Sequence[MachineRecord], now: float
) -> str:
    """What keeps the pool from having more machines, or which machines are on their way.

    Args:
        scaling: the pool as the scaler's last run left it; None if none did.
        machines: of the pool.
    """
    remedy = f"run `fray scale {pool}`, or wait where its fray.yaml is"
    if scaling is None or not scaling.ran_at:
        return f"its pool may have machines, but no scaler has looked at it yet; {remedy}"
    if (age := now - scaling.ran_at) > UNATTENDED_SECONDS:
        return f"its pool may have machines, but no scaler has looked at it for {age:.0f} s; {remedy}"
    if scaling.problem:
        return f"its pool cannot be scaled: {scaling.problem}"
    coming = [machine for machine in machines if machine.state in _COMING]
    parts = [_answers(spec, scaling, coming), _coming(coming), _limit(spec, scaling) if not coming else ""]
    return "; ".join(filter(None, parts))


def problem_of(scaling: PoolScaling) -> str:
    """Why the scaler cannot manage the pool, or else what its zones have refused; "" if there is nothing."""
    zones = scaling.zones.items()
    return scaling.problem or "; ".join(f"{each.kind}{f' in {zone}' * bool(zone)}: {each.text}" for zone, each in zones)


def _answers(spec: ProvisioningSpec, scaling: PoolScaling, coming: Sequence[MachineRecord]) -> str:
    """The answers of zones, and the zone that is tried: "stockout in us-east5-a, trying europe-west4-b"."""
    if not scaling.zones:
        return ""
    answered = ", ".join(
        f"{each.kind} in {zone}" if zone else each.kind for zone, each in sorted(scaling.zones.items())
    )
    tried = next((machine.zone for machine in coming), "") or next(
        (zone for zone in spec.zones if zone not in scaling.zones), ""
    )
    words = next((f" ({answer.text})" for answer in scaling.zones.values() if answer.text), "")
    return f"{answered}{f', trying {tried}' if tried else words}"


def _coming(coming: Sequence[MachineRecord]) -> str:
    if not coming:
        return ""
    names = first_names([machine.name for machine in coming], _SHOWN)
    return f"{len(coming)} machine{'s are' if len(coming) > 1 else ' is'} on the way: {names}"


def _limit(spec: ProvisioningSpec, scaling: PoolScaling) -> str:
    if scaling.limit == "max":
        return f"its pool has as many machines as it may, {spec.max}"
    if scaling.limit == "cost":
        limit = "" if spec.max_hourly_cost is None else f" of ${spec.max_hourly_cost:,.2f}"
        return f"its pool costs ${scaling.hourly_cost:,.2f} an hour, and its limit{limit} allows no more"
    if scaling.limit == "zones":
        return "no zone of its pool grants a machine now"
    return ""
