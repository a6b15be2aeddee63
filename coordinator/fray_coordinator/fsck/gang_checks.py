"""Checks for gangs that nobody will bring to an end, and for the members that should do so."""

from collections.abc import Iterator

from fray_coordinator.fsck.job_checks import not_stopped
from fray_coordinator.fsck.report import BY_REPAIR, Problem, SuspectedProblem
from fray_coordinator.fsck.snapshot import Snapshot
from fray_coordinator.protocol.heartbeat import is_fenced
from fray_coordinator.protocol.transitions import Status
from fray_layouts.object_keys import AgentKeys, JobKeys
from fray_layouts.records import JobRecord, PlacementMember
from fray_layouts.spec import is_gang
from fray_layouts.work_keys import WorkKeys


def abandoned_gangs(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find running gangs that lack one of their members, and gangs that nobody stops."""
    exits = set(seen.keys[WorkKeys.area])
    for job in seen.jobs.values():
        with seen.judging(JobKeys.key(job.id)):
            if job.status != Status.RUNNING or not is_gang(job.spec):
                continue
            key, members = JobKeys.key(job.id), job.placement.members if job.placement is not None else []
            if not members:
                what = "by its record it runs, but the record names no agent: none can finish it"
                remedy = f"end it with `fray stop {job.id}`, and submit it again"
                yield SuspectedProblem(Problem(key, what, remedy), seen.versions(key))
            for member in members:
                ended = all(WorkKeys.exit(job.id, job.attempt, replica) in exits for replica in member.bundles)
                problem = _of_member(seen, job, member) if not ended else None
                if problem is not None:
                    yield SuspectedProblem(problem, seen.versions(key))


def _of_member(seen: Snapshot, job: JobRecord, member: PlacementMember) -> Problem | None:
    """The problem of a member whose replicas have not all stored their exits; None if there is none."""
    key, agent = JobKeys.key(job.id), AgentKeys.key(member.agent)
    if seen.is_doubtful(agent):
        return None
    holder = seen.agents.get(member.agent)
    if holder is None or is_fenced(holder):
        state = holder.state if holder is not None else "unknown"
        what = f"its replicas {member.bundles} run under agent {member.agent}, which is {state}"
        return Problem(key, what, BY_REPAIR) if seen.is_settled(key, agent) else None
    if job.id not in holder.holdings:
        what = f"by its record agent {holder.id} runs its replicas {member.bundles}, and lives, but does not list it"
        return Problem(key, what, BY_REPAIR) if seen.outlasted(holder, key) else None
    return not_stopped(seen, job, holder)
