"""Explains in one line for people why a job waits, also in a reservation or with its launch group.

Every command and wait shows the line. It follows from the records of the job, of the live agents and of the
reservations around the job; only `reservations_around` makes requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from msgspec import structs

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.jobs.lookup import find_reservation
from fray_coordinator.jobs.why_gathering import closest_of, no_agent_in, none_could_run, of_several, why_gathering
from fray_coordinator.jobs.why_machines import with_machines
from fray_coordinator.protocol.claiming import avoided_until, back_off_until
from fray_coordinator.protocol.environments import python_shortage
from fray_coordinator.protocol.placements.assignment import assign
from fray_coordinator.protocol.placements.families import goes_before_kept
from fray_coordinator.protocol.placements.hosts import Room, host_view, room_of
from fray_coordinator.protocol.placements.owners import Owner, owner_of_job, owner_of_reservation
from fray_coordinator.protocol.placements.reservations import in_own_bundles, private_views
from fray_coordinator.protocol.scheduling import (
    elsewhere,
    entry_of,
    kind_of_host,
    remaining_after,
    resources_of,
    shape_of,
    shortage,
)
from fray_coordinator.protocol.stopping import holders_of
from fray_coordinator.protocol.transitions import Status, is_waiting
from fray_layouts.escaping import one_line
from fray_layouts.index_keys import Shape
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import AgentRecord, Holding, JobRecord, Placement, ReservationRecord
from fray_layouts.spec import JobSpec, is_gang
from fray_layouts.states import HoldingPhase, ReservationKind, ReservationState
from fray_layouts.units import counted, first_names

_LEVELS = 2
"""Levels of nesting: a group may be in a reservation, and a reservation is in nothing."""


async def reservations_around(core: Core, jobs: Iterable[JobRecord]) -> dict[str, ReservationRecord]:
    """By id: the reservations and groups that these jobs are in, and the reservations that such groups are in.

    Reservations that cannot be read are left out.
    """
    pools = {job.spec.pool for job in jobs}
    around: dict[str, ReservationRecord] = {}
    for _ in range(_LEVELS):
        ids = {ReservationKeys.of_pool(pool) for pool in pools} - {"", *around}
        found = await map_noting_problems(sorted(ids), lambda reservation: find_reservation(core, reservation), {})
        around |= {record.id: record for record in found if record is not None}
        pools = {record.pool for record in around.values()}
    return around


def why_in_reservation(
    job: JobRecord,
    record: ReservationRecord | None,
    live: Sequence[AgentRecord],
    now: float,
    machines: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Why a job that waits in a private pool has not started.

    Args:
        record: of its reservation; None if it is not known.
        live: all live agents.
        machines: by pool, how its machines matter (`machines_for`).
    """
    if record is None:
        return f"it waits in {ReservationKeys.of_pool(job.spec.pool)}, which does not exist yet, or cannot be read"
    owner = owner_of_reservation(record)
    is_group = record.kind == ReservationKind.GROUP
    what = f"its {'group' if is_group else 'reservation'} {record.id}"
    if record.state == ReservationState.ENDED:
        return f"{what} has ended ({record.reason}); it will be stopped"
    if record.state == ReservationState.FORMING:
        start = "starts all of its jobs at once" if is_group else "does not have its minimum of places yet"
        return f"{what} {start}: {with_machines(why_gathering(owner, live, now), record.pool, live, machines)}"
    if job.spec.same and _is_split(job, owner, live):
        return (
            f"{what} is held, and has places enough for its {job.spec.replicas} replicas, but not in one "
            f"{job.spec.same}; launch it without same, or wait until more places come"
        )
    return f"{what} is held, and {_why_not_in(job, owner, is_group)}"


def _is_split(job: JobRecord, reservation: Owner, live: Sequence[AgentRecord]) -> bool:
    """Whether the reservation has room for the whole gang, but not within one zone or region."""
    agents = {agent.id: agent for agent in live}
    hosts = {agent.id: host_view(agent, {}) for agent in live}
    views = [replace(view, busy=Room()) for view in private_views(reservation, hosts, agents)]
    gang = replace(in_own_bundles(owner_of_job(job), {reservation.id: reservation}), placement=Placement())
    together, anywhere = (assign(views, [replace(gang, same=same)])[gang.id].members for same in (gang.same, ""))
    return bool(anywhere) and not together


def _why_not_in(job: JobRecord, owner: Owner, is_group: bool) -> str:
    members = owner.placement.members
    if is_group:
        wanted = {number for part in owner.parts if part.job == job.id for number in part.bundles}
        lacking = wanted - {number for member in members for number in member.bundles}
        if lacking:
            return (
                f"{len(lacking)} of the {len(wanted)} places of this job were lost with their hosts; others are sought"
            )
        hosts = sorted({m.host or m.agent for m in members if wanted & set(m.bundles)})
        return f"{first_names(hosts, 3)} should start it soon"
    has, total = sum(len(member.bundles) for member in members), sum(part.count for part in owner.parts)
    return f"no room is left for it in its {has} of at most {total} places, or an agent should claim it soon"


JobKind = tuple[str, Shape, str, str, str]
"""What decides where a job can run: its pool, its shape, the versions of Python that it needs, and its place."""


def kind_of_job(spec: JobSpec) -> JobKind:
    """The kind of a job; jobs of one kind wait for the same reason."""
    call = spec.entrypoint.callable
    wants = spec.resources
    place = repr((wants.zone, sorted(wants.regions), sorted(wants.labels.items())))
    return spec.pool, shape_of(spec), call.python if call is not None else "", spec.environment.python, place


def with_claims(live: Iterable[AgentRecord], jobs: Iterable[JobRecord]) -> list[AgentRecord]:
    """The agents' records, with less free room where some of these jobs run that no heartbeat lists yet.

    An agent claims jobs between two heartbeats, and has no room for others then.
    """
    agents = {agent.id: agent for agent in live}
    for job in jobs:
        agent = agents.get(job.lease.agent) if job.status == Status.RUNNING and job.lease is not None else None
        if agent is not None and job.id not in agent.holdings and not is_gang(job.spec):
            left = remaining_after(agent.free, shape_of(job.spec))
            free = structs.replace(
                agent.free,
                cpu=max(0, left.cpu),
                memory=max(0, left.memory),
                disk=max(0, left.disk),
                device_count=max(0, left.device_count),
            )
            holdings = {**agent.holdings, job.id: Holding(attempt=job.attempt)}
            agents[agent.id] = structs.replace(agent, free=free, holdings=holdings)
    return list(agents.values())


def why_waiting(
    job: JobRecord,
    live: Iterable[AgentRecord],
    now: float,
    around: Mapping[str, ReservationRecord] = MappingProxyType({}),
    machines: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Why a waiting job has not started.

    Args:
        live: all live agents, of every pool.
        around: the reservations and groups that jobs are in, by id (`reservations_around`).
        machines: by pool, the line about its machines (`machines_for`).
    """
    return reasons_by_job([job], list(live), now, around, machines)[job.id]


def reasons_by_job(
    jobs: Iterable[JobRecord],
    live: Sequence[AgentRecord],
    now: float,
    around: Mapping[str, ReservationRecord] = MappingProxyType({}),
    machines: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """`why_waiting` of many jobs, by their ids. Each kind of job is examined once, and each gang by itself."""
    kinds: dict[tuple[JobKind, frozenset[str], frozenset[tuple[str, str]]], str] = {}
    keeping = [agent for agent in live if agent.kept]
    reasons: dict[str, str] = {}
    for job in jobs:
        if reservation := ReservationKeys.of_pool(job.spec.pool):
            inside = why_in_reservation(job, around.get(reservation), live, now, machines)
            reasons[job.id] = _too_early(job, now) or one_line(inside)
            continue
        if is_gang(job.spec):
            gathering = why_gathering(owner_of_job(job), live, now)
            reasons[job.id] = _too_early(job, now) or with_machines(gathering, job.spec.pool, live, machines)
            continue
        avoided = frozenset(host for host in job.avoid_hosts if now < avoided_until(job, host, now))
        kept_from = _kept_from(job, keeping)
        kind = kind_of_job(job.spec), avoided, kept_from
        if kind not in kinds:
            why = _why_kind_waits(job.spec, live, avoided, kept_from)
            kinds[kind] = one_line(with_machines(why, job.spec.pool, live, machines))
        reasons[job.id] = _too_early(job, now) or kinds[kind] + (f"; {_last_end(job)}" if avoided else "")
    return reasons


def why_stuck(job: JobRecord, live: Iterable[AgentRecord]) -> str:
    """Why a running job may have ended long ago or may run nowhere; "" if its agents are alive. live: as above."""
    if is_waiting(job) or job.ended_at is not None or job.driver:
        return ""
    heard_of = {agent.id for agent in live}
    silent = [agent for agent in holders_of(job) if agent not in heard_of]
    if not silent:
        return ""
    return (
        f"its agent {silent[0]} was not heard of lately: it has died, which other agents notice within a minute, "
        "or it cannot write to the root, which `fray doctor` shows"
    )


def _too_early(job: JobRecord, now: float) -> str:
    if now >= (until := back_off_until(job, now)):
        return ""
    return f"it is tried again in {until - now:.0f} s, after {_last_end(job)}"


def _last_end(job: JobRecord) -> str:
    """How the last attempt ended, as far as the record tells."""
    ended = f"attempt {job.attempt - 1} ended"
    exit = job.history[-1].exit if job.history else None
    return ended if exit is None else one_line(f"{ended}: {exit.kind}: {exit.message}")


def _kept_from(job: JobRecord, keeping: Iterable[AgentRecord]) -> frozenset[tuple[str, str]]:
    """The agents of its pool that keep room for owners which come before the job, each with the owner."""
    entry = entry_of(job) if job.status == Status.PENDING else None
    return frozenset(
        (agent.id, owner)
        for agent in keeping
        if agent.pool == job.spec.pool and entry is not None
        for owner, kept in agent.kept.items()
        if not goes_before_kept(entry, owner, kept)
    )


def _why_kind_waits(
    spec: JobSpec, live: Sequence[AgentRecord], avoided: frozenset[str], kept_from: frozenset[tuple[str, str]]
) -> str:
    """Why jobs of a kind wait.

    Args:
        avoided: hosts that leave the job to others, as they could not start it lately.
        kept_from: agents, each with an owner of a placement for which it keeps room that the job may not use.
    """
    shape = shape_of(spec)
    agents = [agent for agent in live if agent.pool == spec.pool]
    if not agents:
        return no_agent_in(spec.pool, live)
    wants = {agent.id: _never(spec, shape, agent) for agent in agents}
    able = [agent for agent in agents if not wants[agent.id]]
    if not able:
        return none_could_run("it", spec.pool, agents, wants)
    staying = [agent for agent in able if not agent.drain]
    if not staying:
        return f"each agent of pool {spec.pool} that could run it is drained: {able[0].id}{of_several(able, 'is one')}"
    if all(agent.unfit for agent in staying):
        one = staying[0]
        return f"each agent that could run it is unfit: {one.id}{of_several(staying, 'is one')} ({one.problem})"
    now_lacks = {
        agent.id: _lacks_now(shape, agent, avoided, [owner for keeper, owner in kept_from if keeper == agent.id])
        for agent in staying
    }
    closest = closest_of(staying, now_lacks, lambda agent: agent.free)
    if not now_lacks[closest.id]:
        return f"{closest.id} has room and should claim it soon"
    votes = [owner for owner, holding in closest.holdings.items() if holding.phase == HoldingPhase.RESERVED]
    held = len(closest.holdings) - len(votes)
    there = [f"{counted(held, 'job')} there"] if held else []
    there += [f"room is reserved for {first_names(sorted(votes), 2)}"] if votes else []
    lacks = "; ".join([*there, *now_lacks[closest.id]])
    return f"no agent can take it now: {closest.id}{of_several(staying, 'comes closest')} ({lacks})"


def _kept_for(agent: AgentRecord, owners: Iterable[str]) -> Room:
    room = Room()
    for owner in owners:
        room = room.plus(room_of(agent.kept[owner].room))
    return room


def _never(spec: JobSpec, shape: Shape, agent: AgentRecord) -> list[str]:
    """What the agent's host can never offer the job."""
    lacks = shortage(shape, agent.capacity, kind_of_host(agent), "here")
    lacks += elsewhere(spec.resources, agent)
    return [*lacks, *filter(None, [python_shortage(spec, agent.software)])]


def _lacks_now(shape: Shape, agent: AgentRecord, avoided: frozenset[str], owners: Sequence[str]) -> list[str]:
    """What an agent that could run the job lacks at present, by its record and by that of the job.

    owners: those for which it keeps room that the job may not use.
    """
    lacks = [*shortage(shape, agent.free, kind_of_host(agent)), *filter(None, [agent.problem])]
    left = room_of(agent.free).less(_kept_for(agent, owners))
    if not lacks and owners and not left.holds(room_of(resources_of(shape))):
        lacks.append(f"its free room is kept for {first_names(sorted(owners), 2)}")
    if agent.host in avoided:
        lacks.append("its host could not start the job and waits a minute for another host to take it")
    return lacks
