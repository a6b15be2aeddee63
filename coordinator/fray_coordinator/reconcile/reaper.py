"""Reaps dead agents: requeues every job that the agent's record lists, and only then marks the record reaped."""

from msgspec.structs import replace

from fray_coordinator.concurrency import map_noting_problems
from fray_coordinator.core import Core
from fray_coordinator.errors import BadRecord
from fray_coordinator.jobs import gang_commit, pending_index
from fray_coordinator.protocol.failure_detection import declare_dead, needs_reaping
from fray_coordinator.protocol.transitions import Status
from fray_coordinator.store.records import Stored
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import AgentRecord, JobRecord
from fray_layouts.spec import is_gang
from fray_layouts.states import AgentState


async def declare_agent_dead(
    core: Core, agent: Stored[AgentRecord], patience: float | None = None
) -> Stored[AgentRecord] | None:
    """Declare the agent dead if its beat is still the observed one; None if the agent lives after all.

    patience: as in `Store.put`.
    """
    beat = agent.record.beat
    update = await core.records.change(agent.key, AgentRecord, lambda now: declare_dead(now, beat), agent, patience)
    stored = update.stored
    return stored if stored is not None and stored.record.state == AgentState.DEAD else None


async def reap(core: Core, agent: Stored[AgentRecord]) -> None:
    """Requeue the jobs that the dead agent held, and mark it reaped once job and index agree for all of them.

    Only jobs whose record names the agent of this key are requeued: the record might be a copy of another agent's.
    Raises BadRecord: some of the jobs cannot be read; the others were requeued.
    """
    dead = AgentKeys.parse(agent.key)
    if dead is None or not needs_reaping(agent.record):
        return
    problems: dict[str, str] = {}
    await map_noting_problems(agent.record.holdings, lambda job: _requeue_job(core, job, dead), problems)
    if problems:
        raise BadRecord(_summarize(problems))
    await core.records.change(
        agent.key, AgentRecord, lambda now: replace(now, reaped=True) if needs_reaping(now) else None, agent
    )


async def _requeue_job(core: Core, job_id: str, dead: str) -> None:
    """Requeue one listed job if the dead agent still holds it, and make the index agree.

    A gang goes on without a member that has done its part. The scheduler of placements replaces the agent in gangs that
    are gathering, and in reservations.
    """
    job = await core.records.read(JobKeys.key(job_id), JobRecord)
    if job is not None and is_gang(job.record.spec):
        await gang_commit.end_without(core, job, dead)
        return
    now = await pending_index.requeue_lost_job(core, job, dead) if job is not None else None
    if now is not None and now.record.status == Status.PENDING:
        await pending_index.create_entry(core, now.record)


def _summarize(problems: dict[str, str]) -> str:
    first, *more = problems.values()
    return f"{first}; and {len(more)} more of its jobs" if more else first
