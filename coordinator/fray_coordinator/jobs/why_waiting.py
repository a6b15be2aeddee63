"""Why a job waits, in one line for people: what is told wherever something waits.

It is found in the records of the job and of the agents that live, without a request.
"""

from collections.abc import Callable, Iterable, Sequence

from fray_coordinator.protocol.pythons import python_shortage
from fray_coordinator.protocol.scheduling import kind_of_host, shape_of, shortage
from fray_layouts.escaping import one_line
from fray_layouts.index_keys import Shape
from fray_layouts.records import AgentRecord, JobRecord, Resources
from fray_layouts.spec import JobSpec

JobKind = tuple[str, Shape, str, str]
"""What decides where a job can run: its pool, its shape, and the versions of Python that it asks for."""


def kind_of_job(spec: JobSpec) -> JobKind:
    """Jobs of one kind wait for the same."""
    call = spec.entrypoint.callable
    return spec.pool, shape_of(spec), call.python if call is not None else "", spec.environment.python


def why_waiting(job: JobRecord, live: Iterable[AgentRecord], now: float) -> str:
    """Why a pending job has not started. live: all agents that live, of every pool."""
    return reasons_by_job([job], list(live), now)[job.id]


def reasons_by_job(jobs: Iterable[JobRecord], live: Sequence[AgentRecord], now: float) -> dict[str, str]:
    """`why_waiting` of many pending jobs by their ids, each kind of them looked at once."""
    kinds: dict[JobKind, str] = {}
    reasons: dict[str, str] = {}
    for job in jobs:
        kind = kind_of_job(job.spec)
        if kind not in kinds:
            kinds[kind] = one_line(_why_kind_waits(job.spec, live))
        reasons[job.id] = _too_early(job, now) or kinds[kind]
    return reasons


def why_stuck(job: JobRecord, live: Iterable[AgentRecord]) -> str:
    """Why a running job may have ended long ago, or run nowhere; "" if its agent is heard of. live: as above."""
    if job.lease is None or job.ended_at is not None or job.driver:
        return ""
    if any(agent.id == job.lease.agent for agent in live):
        return ""
    return (
        f"its agent {job.lease.agent} was not heard of lately: it has died, which others see within a minute, or it "
        "cannot write to the root, which `fray doctor` sees"
    )


def _too_early(job: JobRecord, now: float) -> str:
    if now >= job.not_before:
        return ""
    return f"it is tried again in {job.not_before - now:.0f} s, after attempt {job.attempt - 1} ended"


def _why_kind_waits(spec: JobSpec, live: Sequence[AgentRecord]) -> str:
    shape = shape_of(spec)
    agents = [agent for agent in live if agent.pool == spec.pool]
    if not agents:
        return _nobody(spec.pool, live)
    never = {agent.id: _never(spec, shape, agent) for agent in agents}
    able = [agent for agent in agents if not never[agent.id]]
    if not able:
        closest = _closest(agents, never, lambda agent: agent.capacity)
        return (
            f"no live agent of pool {spec.pool} could ever run it: {closest.id}{_of(agents, 'comes closest')} "
            f"({'; '.join(never[closest.id])}); ask for less, or start an agent that has it"
        )
    staying = [agent for agent in able if not agent.drain]
    if not staying:
        return f"each agent of pool {spec.pool} that could run it is drained: {able[0].id}{_of(able, 'is one')}"
    now_lacks = {agent.id: _lacks_now(shape, agent) for agent in staying}
    closest = _closest(staying, now_lacks, lambda agent: agent.free)
    if not now_lacks[closest.id]:
        return f"{closest.id} has room and should claim it soon"
    held = len(closest.holdings)
    jobs = [f"{held} job{'s' * (held != 1)} there"] if held else []
    lacks = "; ".join([*jobs, *now_lacks[closest.id]])
    return f"no agent can take it now: {closest.id}{_of(staying, 'comes closest')} ({lacks})"


def _nobody(pool: str, live: Iterable[AgentRecord]) -> str:
    others = sorted({agent.pool for agent in live})
    elsewhere = f"; there are agents in pool {', '.join(others)}" if others else ""
    return f"no live agent in pool {pool}; start one with `fray agent --pool {pool}`{elsewhere}"


def _never(spec: JobSpec, shape: Shape, agent: AgentRecord) -> list[str]:
    """What the agent's host will always lack for the job."""
    lacks = shortage(shape, agent.capacity, kind_of_host(agent), "here")
    return [*lacks, *filter(None, [python_shortage(spec, agent.software)])]


def _lacks_now(shape: Shape, agent: AgentRecord) -> list[str]:
    """What keeps an agent that could run the job from it, as its record says."""
    return [*shortage(shape, agent.free, kind_of_host(agent)), *filter(None, [agent.problem])]


def _closest(
    agents: Sequence[AgentRecord], lacks: dict[str, list[str]], amount: Callable[[AgentRecord], Resources]
) -> AgentRecord:
    """The agent that lacks the fewest things; of several, the one with the most resources."""

    def rank(agent: AgentRecord) -> tuple[int, int, int, int, str]:
        has = amount(agent)
        return len(lacks[agent.id]), -has.device_count, -has.cpu, -has.memory, agent.id

    return min(agents, key=rank)


def _of(agents: Sequence[AgentRecord], what: str) -> str:
    """How one of several is told from the others; "" for the only one."""
    return f" {what} of {len(agents)}" if len(agents) > 1 else ""
