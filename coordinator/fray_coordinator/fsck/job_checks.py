"""Checks for jobs that nobody will bring to an end, and for the agents that should do so."""

from collections.abc import Iterator

from fray_coordinator.fsck.report import BY_REPAIR, Problem, SuspectedProblem
from fray_coordinator.fsck.snapshot import Snapshot
from fray_coordinator.protocol.archiving import why_unusable
from fray_coordinator.protocol.cascade import ChildVerdict, judge_child
from fray_coordinator.protocol.heartbeat import is_fenced
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.protocol.transitions import Status, is_terminal
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import AgentKeys, ArchiveKeys, BlobKeys, JobKeys
from fray_layouts.records import AgentRecord, JobRecord, KeptOutputs
from fray_layouts.spec import blobs_of, is_gang
from fray_layouts.work_keys import WorkKeys


def missing_entries(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find waiting jobs without an entry. Submitters create it before the record, everybody else after it."""
    entries = set(seen.keys[PendingKey.area])
    for job in seen.jobs.values():
        with seen.judging(JobKeys.key(job.id)):
            key, entered_first = JobKeys.key(job.id), job.attempt == 1 and job.inbox is None
            if job.status != Status.PENDING or entry_of(job).key() in entries:
                continue
            if entered_first or seen.is_settled(key):
                what = "it waits, but has no entry in the index, so no agent finds it"
                yield SuspectedProblem(Problem(key, what, BY_REPAIR), seen.versions(key))


def stuck_admissions(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find files of the inbox whose admission was interrupted."""
    for job in seen.jobs.values():
        with seen.judging(JobKeys.key(job.id)):
            key = JobKeys.key(job.id)
            if job.status != Status.UNADMITTED or not seen.is_settled(key):
                continue
            if job.inbox is not None:
                what = "it was read from the inbox, but neither admitted nor withdrawn"
                yield SuspectedProblem(Problem(key, what, BY_REPAIR), seen.versions(key))
            else:
                what = "it waits to be admitted, but its record does not name the inbox file that it was made from"
                yield SuspectedProblem(Problem(key, what, _again(job)), seen.versions(key))


def missing_blobs(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find jobs that cannot run because a blob is gone; blobs are stored before the record, and kept as long as it."""
    blobs = set(seen.keys[BlobKeys.area])
    for job in seen.jobs.values():
        with seen.judging(JobKeys.key(job.id)):
            gone = [blob for blob in blobs_of(job.spec) if blob not in blobs]
            if gone and not is_terminal(job):
                workspace = job.spec.environment.workspace
                part = "workspace" if workspace is not None and workspace.blob == gone[0] else "callable"
                part = "standard input" if gone[0] == job.spec.entrypoint.stdin else part
                what = f"its {part} is gone: there is no object {gone[0]}, so no attempt of it can run"
                yield SuspectedProblem(
                    Problem(JobKeys.key(job.id), what, _again(job)), seen.versions(JobKeys.key(job.id))
                )


def _again(job: JobRecord) -> str:
    """The remedy for a job that will never run; its own id cannot be used again."""
    other = f" under another id than {job.spec.id!r}" if job.spec.id else ""
    return f"end it with `fray stop {job.id}`, and submit it again{other}"


def jobs_without_lease(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find running jobs without a lease. No rule restores a lease; only a stop needs none."""
    for job in seen.jobs.values():
        with seen.judging(JobKeys.key(job.id)):
            if job.status == Status.RUNNING and job.lease is None and not is_gang(job.spec):
                key = JobKeys.key(job.id)
                what = "by its record it runs, but the record names no agent: none can finish it or start it again"
                yield SuspectedProblem(Problem(key, what, _again(job)), seen.versions(key))


def abandoned_jobs(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find jobs that run only by their records, and jobs that nobody stops."""
    entered: set[str] = set()
    for key in seen.keys[PendingKey.area]:
        with seen.judging(key):
            if (entry := PendingKey.parse(key)) is not None:
                entered.add(entry.job)
    for job in seen.jobs.values():
        with seen.judging(JobKeys.key(job.id)):
            if job.status != Status.RUNNING or job.lease is None or seen.is_doubtful(AgentKeys.key(job.lease.agent)):
                continue
            key, holder = JobKeys.key(job.id), seen.agents.get(job.lease.agent)
            if holder is None or is_fenced(holder):
                problem = _under_the_dead(seen, key, job.lease.agent, holder)
            elif job.id not in holder.holdings:
                problem = _disowned(seen, key, holder, job.id in entered)
            else:
                problem = not_stopped(seen, job, holder)
            if problem is not None:
                yield SuspectedProblem(problem, seen.versions(key))


def _under_the_dead(seen: Snapshot, key: str, agent: str, holder: AgentRecord | None) -> Problem | None:
    if not seen.is_settled(key, AgentKeys.key(agent)):
        return None
    what = f"it runs under agent {agent}, which is {holder.state if holder else 'unknown'}"
    return Problem(key, what, BY_REPAIR)


def _disowned(seen: Snapshot, key: str, holder: AgentRecord, is_entered: bool) -> Problem | None:
    """The problem of a job that its live holder does not list.

    An agent lists a job before it claims it, and the entry is deleted only after a heartbeat that lists the job. So if
    the entry is gone, there was such a heartbeat; if not, a heartbeat long after the claim must have been one.
    """
    if is_entered and not seen.outlasted(holder, key):
        return None
    what = f"by its record agent {holder.id} runs it, and that agent lives, but does not list it: nobody runs it"
    remedy = (
        f"any live agent requeues it within minutes; if it stays so, make agent {holder.id} leave: `fray drain "
        f"{holder.id}`, or SIGTERM to it"
    )
    return Problem(key, what, remedy)


def not_stopped(seen: Snapshot, job: JobRecord, holder: AgentRecord) -> Problem | None:
    """The problem of a job, or of a member's replicas, that a live holder has not stopped; None if there is none."""
    key, part = JobKeys.key(job.id), "its replicas" if is_gang(job.spec) else "it"
    if job.stop is None or not seen.outlasted(holder, key, job.spec.grace):
        return None
    what = f"it was asked to stop, but agent {holder.id}, which lives, has not ended {part}"
    return Problem(key, what, f"look at the processes on host {holder.host}; if they are gone, restart that agent")


def records_in_both_places(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find archived jobs that run again. A mover that dies leaves two equal records, until the next repair moves on."""
    for key in seen.keys[ArchiveKeys.area]:
        with seen.judging(key):
            job = seen.jobs.get(ArchiveKeys.parse(key) or "")
            place = JobKeys.key(job.id) if job is not None else ""
            if job is None or place not in seen.stored or key not in seen.stored or not seen.is_settled(place):
                continue
            if not is_terminal(job):
                what = f"it is {job.status}, but its record {key} says that it has ended: it runs twice"
                remedy = (
                    f"end it with `fray stop {job.id}`; until then, and afterwards, this record is the one that counts"
                )
                yield SuspectedProblem(Problem(place, what, remedy), seen.versions(place, key))


def archived_before_their_end(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find records in the archive that have not ended. Fray archives none of these."""
    for key in seen.keys[ArchiveKeys.area]:
        with seen.judging(key):
            copy = seen.stored.get(key)
            if copy is not None and (why := why_unusable(copy.record)) is not None:
                what, remedy = why
                yield SuspectedProblem(Problem(key, f"it {what}", remedy), seen.versions(key))


def orphans(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find children that outlived their parents."""
    for job in seen.jobs.values():
        with seen.judging(JobKeys.key(job.id)):
            if is_terminal(job) or job.parent is None or job.stop is not None:
                continue
            key, parent = JobKeys.key(job.id), JobKeys.key(job.parent.job)
            if not seen.is_doubtful(parent) and seen.is_settled(key, parent) and is_orphan(seen, job):
                what = f"its parent {job.parent.job} no longer runs attempt {job.parent.attempt}, but it goes on"
                yield SuspectedProblem(Problem(key, what, BY_REPAIR), seen.versions(key, parent))


def is_orphan(seen: Snapshot, job: JobRecord) -> bool:
    """Whether the job must be stopped because its parent no longer runs."""
    parent = seen.jobs.get(job.parent.job) if job.parent is not None else None
    return judge_child(job, parent, seen.now, seen.settings.repair_interval) is ChildVerdict.STOP


def missing_results(seen: Snapshot) -> Iterator[SuspectedProblem]:
    """Find missing results and outputs. They are stored before the record says so, and deleted after it is marked."""
    data = set(seen.keys[WorkKeys.area])
    for job in seen.jobs.values():
        with seen.judging(JobKeys.key(job.id)):
            result = [job.result.key] if job.result is not None and job.result.key else []
            for what, keys in (("result is", result), ("outputs are", _objects_of(job.outputs))):
                gone = next((key for key in keys if key not in data), None)
                if gone is not None and not job.expiring:
                    key, problem = JobKeys.key(job.id), f"it succeeded, but its {what} gone: there is no object {gone}"
                    yield SuspectedProblem(
                        Problem(key, problem, f"run it again if its {what} needed"), seen.versions(key)
                    )


def _objects_of(outputs: KeptOutputs | None) -> Iterator[str]:
    if outputs is not None:
        yield outputs.key
        yield from (WorkKeys.output_part(outputs.key, number + 1) for number in range(outputs.parts))
