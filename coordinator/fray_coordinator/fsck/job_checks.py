"""Checks for jobs, gangs and agents that nobody will bring to an end, and of the cluster's shared records."""

from collections.abc import AsyncIterator, Iterator

from fray_coordinator.clock import SystemClock, system_random
from fray_coordinator.errors import REMOVE_HINT, BadRecord, StoreRefused
from fray_coordinator.fsck.report import BY_REPAIR, CONSEQUENCES, Problem, SuspectedProblem
from fray_coordinator.fsck.snapshot import Snapshot
from fray_coordinator.jobs.lookup import is_silent
from fray_coordinator.protocol.cluster_identity import why_not_here
from fray_coordinator.protocol.failure_detection import needs_reaping
from fray_coordinator.protocol.heartbeat import DEATH_INTERVALS, is_fenced
from fray_coordinator.protocol.retention import why_unusable
from fray_coordinator.protocol.scheduling import entry_of
from fray_coordinator.protocol.stopping import ChildVerdict, holders_of, judge_child
from fray_coordinator.protocol.transitions import Status, is_terminal, is_waiting
from fray_coordinator.store.opening import open_store
from fray_coordinator.store.probe import Finding
from fray_coordinator.store.records import Records, record_of
from fray_coordinator.store.store import Store
from fray_layouts.index_keys import PendingKey
from fray_layouts.object_keys import CLUSTER_KEY, AgentKeys, ArchiveKeys, BlobKeys, CoordinatorKeys, JobKeys, SecretKeys
from fray_layouts.records import (
    AgentRecord,
    ClusterSettings,
    Holding,
    JobRecord,
    KeptOutputs,
    PlacementMember,
    ReconcilerRecord,
    Record,
    RpcSecrets,
)
from fray_layouts.spec import blobs_of, is_gang
from fray_layouts.states import AgentState, HoldingPhase
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


CLUSTER_RECORDS: tuple[tuple[str, type[Record]], ...] = (
    (CLUSTER_KEY, ClusterSettings),
    (SecretKeys.rpc, RpcSecrets),
    (CoordinatorKeys.reconciler, ReconcilerRecord),
)
"""Records of the whole cluster. Agents replace the last one by themselves, so it is only a warning."""


async def check_cluster(root: str) -> list[Finding]:
    """Return a finding for each unreadable record of the whole cluster, and for each object that the last pass skipped.

    Raises StoreRefused, StoreUnavailable: the root cannot be read; `probe` reports why.
    """
    clock, rng = SystemClock(), system_random()
    store = await open_store(root, clock, rng)
    try:
        return [finding async for finding in _findings(store, Records(store, clock, rng))]
    finally:
        await store.close()


async def _findings(store: Store, records: Records) -> AsyncIterator[Finding]:
    for key, kind in CLUSTER_RECORDS:
        try:
            found = record_of(await records.read(key, kind))
        except BadRecord as error:
            means, remedy = CONSEQUENCES[kind]
            yield Finding(
                "warning" if kind is ReconcilerRecord else "error",
                f"{means} ({str(error).removesuffix(REMOVE_HINT)})",
                remedy,
            )
        except StoreRefused as error:
            yield Finding(
                "warning",
                f"{key} cannot be read: {error}",
                "if the record is needed, ask the bucket's owner for the right",
            )
        else:
            if isinstance(found, ClusterSettings) and (why := why_not_here(found, store.address, store.root)):
                yield Finding("error", why, "")
            for what in _skipped_objects(found) if isinstance(found, ReconcilerRecord) else ():
                yield Finding("warning", what, "see `fray fsck`")


def _skipped_objects(last: ReconcilerRecord) -> Iterator[str]:
    for key, problem in last.problems.items():
        yield f"the reconciler's last pass skipped {key}: {problem.removesuffix(REMOVE_HINT)}"
    if last.problems_omitted:
        yield f"the reconciler's last pass skipped {last.problems_omitted} more objects"
