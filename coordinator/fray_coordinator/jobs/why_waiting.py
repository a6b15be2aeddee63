"""Explains in one line for people why a job waits; every command and wait shows it.

It looks at the records of the job and of the live agents only, and makes no request.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from fray_coordinator.jobs.closest_agents import closest_of, no_agent_in, none_could_run, of_several
from fray_coordinator.jobs.why_gathering import why_gathering
from fray_coordinator.jobs.why_in_reservation import why_in_reservation
from fray_coordinator.jobs.why_machines import with_machines
from fray_coordinator.protocol.claiming import avoided_until, back_off_until
from fray_coordinator.protocol.placements.families import goes_before_kept
from fray_coordinator.protocol.placements.hosts import Room, room_of
from fray_coordinator.protocol.placements.owners import owner_of_job
from fray_coordinator.protocol.pythons import python_shortage
from fray_coordinator.protocol.scheduling import elsewhere, entry_of, kind_of_host, resources_of, shape_of, shortage
from fray_coordinator.protocol.stopping import holders_of
from fray_coordinator.protocol.transitions import Status, is_waiting
from fray_layouts.escaping import one_line
from fray_layouts.index_keys import Shape
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import AgentRecord, JobRecord, ReservationRecord
from fray_layouts.spec import JobSpec, is_gang
from fray_layouts.states import HoldingPhase
from fray_layouts.wording import counted, first_names

JobKind = tuple[str, Shape, str, str, str]
"""What decides where a job can run: its pool, its shape, the versions of Python that it needs, and its place."""


def kind_of_job(spec: JobSpec) -> JobKind:
    """The kind of a job; jobs of one kind wait for the same reason."""
    call = spec.entrypoint.callable
    wants = spec.resources
    place = repr((wants.zone, sorted(wants.regions), sorted(wants.labels.items())))
    return spec.pool, shape_of(spec), call.python if call is not None else "", spec.environment.python, place


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
