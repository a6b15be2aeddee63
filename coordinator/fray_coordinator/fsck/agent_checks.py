"""Checks for agents whose state differs from their records."""

from collections.abc import Iterator

from fray_coordinator.fsck.report import BY_REPAIR, Problem, SuspectedProblem
from fray_coordinator.fsck.snapshot import Snapshot
from fray_coordinator.jobs.lookup import is_silent
from fray_coordinator.protocol.failure_detection import needs_reaping
from fray_coordinator.protocol.heartbeat import DEATH_INTERVALS, is_fenced
from fray_coordinator.protocol.stopping import holders_of
from fray_coordinator.protocol.transitions import is_waiting
from fray_layouts.object_keys import AgentKeys, CoordinatorKeys, JobKeys
from fray_layouts.records import AgentRecord, Holding, JobRecord
from fray_layouts.states import AgentState, HoldingPhase

TIMEOUT_INTERVALS = 2 * DEATH_INTERVALS
"""Intervals after which a silent agent is surely declared dead; if many time out at once, each gets one more
time-out."""


def contradictory_agents(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find dead agents whose jobs were not all requeued, and live ones that list jobs that they cannot hold."""
    for agent in seen.agents.values():
        with seen.judging(AgentKeys.key(agent.id)):
            key = AgentKeys.key(agent.id)
            if needs_reaping(agent) and seen.is_settled(key):
                what = f"it is {agent.state}, and its {len(agent.holdings)} jobs have not all been requeued"
                yield SuspectedProblem(Problem(key, what, BY_REPAIR), seen.versions(key))
            for job, holding in agent.holdings.items() if agent.state == AgentState.LIVE else ():
                if not seen.is_doubtful(JobKeys.key(job)) and (
                    why := _cannot_hold(seen.jobs.get(job), agent.id, holding)
                ):
                    what = f"it lists attempt {holding.attempt} of {job}, {why}"
                    remedy = "the agent soon sees it and ends that task; if it still lists it then, restart that agent"
                    yield SuspectedProblem(Problem(key, what, remedy), seen.versions(JobKeys.key(job)))


def unnoticed_silence(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find agents that are alive only by their records, while no reconciler runs that would notice.

    An agent that is cut off from the store runs its tasks for the outage grace, and has none after that.
    """
    if seen.is_doubtful(CoordinatorKeys.reconciler) or not seen.is_settled(CoordinatorKeys.reconciler):
        return
    for agent in seen.agents.values():
        with seen.judging(AgentKeys.key(agent.id)):
            key = AgentKeys.key(agent.id)
            if is_fenced(agent) or not _is_long_silent(seen, agent):
                continue
            waiting = f"; {len(agent.holdings)} jobs that it lists wait for that" if agent.holdings else ""
            state = (
                "it lives" if agent.state == AgentState.LIVE else f"it is {agent.state!r}, which may mean that it lives"
            )
            what = (
                f"by its record {state}, but it was not heard of for long, and no process notices, because neither an "
                f"agent nor `fray coordinate` runs{waiting}"
            )
            remedy = (
                "start an agent: within minutes it finds this one dead and requeues the jobs that it held; or run "
                "`fray coordinate`, or `fray coordinate --once` several times"
            )
            yield SuspectedProblem(Problem(key, what, remedy), seen.versions(key))


def reported_problems(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find live agents whose last heartbeat reports a problem."""
    for agent in seen.agents.values():
        with seen.judging(AgentKeys.key(agent.id)):
            key = AgentKeys.key(agent.id)
            if agent.problem and agent.state == AgentState.LIVE and not is_silent(seen.stored[key], seen.now):
                remedy = f"put it right on host {agent.host}; the agent takes it back once it is"
                yield SuspectedProblem(Problem(key, f"the agent says: {agent.problem}", remedy))


def _is_long_silent(seen: Snapshot, agent: AgentRecord) -> bool:
    cut_off = max(seen.settings.outage_grace, TIMEOUT_INTERVALS * agent.interval)
    return seen.now - seen.stored[AgentKeys.key(agent.id)].updated > seen.patience + cut_off


def _cannot_hold(job: JobRecord | None, agent: str, holding: Holding) -> str:
    """Why no agent can have listed this before the job was read; "" if it can.

    An unresolved claim may be for any attempt, and an ended attempt may be listed until the next heartbeat.
    """
    if holding.phase in (HoldingPhase.CLAIMING, HoldingPhase.RESERVED, HoldingPhase.REFUSED):
        return ""
    if job is None and holding.bundles:
        return ""  # of a reservation, which has no job record
    if job is None:
        return "but there is no record of this job"
    if holding.attempt > job.attempt:
        return f"which never existed: the job's record says {job.attempt}"
    if holding.attempt == job.attempt and is_waiting(job):
        return "but by its record the job waits to be started"
    if holding.attempt == job.attempt and (holders := holders_of(job)) and agent not in holders:
        return f"but by its record agent {' and '.join(holders[:2])} runs it"
    return ""
