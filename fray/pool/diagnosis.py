"""The diagnosis of missing workers: why they do not run, and what to do about it."""

from collections import Counter
from collections.abc import Sequence

from fray.cluster.job_info import exit_reason, info_of
from fray.types import JobStatus
from fray_coordinator.core import Core
from fray_coordinator.jobs.lookup import live_agents, read_jobs, refreshed_agents, waiting_reasons
from fray_layouts.records import AgentRecord, JobRecord

_MAX_REASONS = 3
"""Reasons in one message, those of most workers first: more would hide what to do."""

_REMEDY = "give the pool resources that an agent has free, or start such agents"


async def explain_absence(core: Core, jobs: Sequence[str]) -> str:
    """Why the workers with these jobs are missing, and what to do about it; "" if there are none."""
    records = await read_jobs(core, jobs, problems={})
    agents = await refreshed_agents(core)
    live = {job.spec.pool: live_agents(agents, job.spec.pool, core.now()) for job in records}
    states = Counter(_state(core, job, live[job.spec.pool]) for job in records)
    reasons = [f"{count} {text}" for text, count in states.most_common(_MAX_REASONS)]
    return "; ".join([*reasons, f"{_REMEDY}; `fray status {records[0].id}` tells more"]) if records else ""


def _state(core: Core, job: JobRecord, live: Sequence[AgentRecord]) -> str:
    """The state of a missing worker's job, with the reason."""
    status = info_of(core.root, job).status
    if status is JobStatus.PENDING:
        return f"pending ({'; '.join(waiting_reasons(job, live, core.now()))})"
    return f"{status} ({exit_reason(job.exit)})" if job.exit is not None else f"{status} and cannot be called yet"
