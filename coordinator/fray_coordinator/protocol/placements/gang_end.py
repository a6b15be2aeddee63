"""The end of a gang's attempt, by the exits that its replicas have left.

**Invariant.** An attempt succeeds only when every replica has; a complete result is never thrown away; one failure is
counted once; a stop is final; a gang does not run on without one of its replicas.

**Unsafe sequence.** All replicas have ended well, and the member that writes the success looks before the last exit is
there: nobody looks again. Or: a member has stored its replica's exit and dies; it is reaped, the gang is put back, and
the result of all is lost. Or: a member that was frozen writes its failure onto the next attempt.

**Why this cannot happen.** Every member looks after it has stored its own exit, so the last one sees all. Whoever
reaps a member does what its exit says that it would have done. And each write is made on condition of a record that is
at this attempt, with that member in it.
"""

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from fray_coordinator.protocol.retries import after_exit, after_loss
from fray_coordinator.protocol.stopping import stop_now
from fray_coordinator.protocol.transitions import Event, Status, transition
from fray_layouts.records import (
    AttemptExit,
    ClusterSettings,
    JobLease,
    JobRecord,
    PlacementMember,
    ReplicaExit,
    total_usage,
)
from fray_layouts.states import ExitKind

_NO_FAILURE = frozenset({ExitKind.PREEMPTED, ExitKind.HOST_FAILED, ExitKind.START_FAILED})
"""The kinds of exits that explain the failures of the other replicas, and are none of the job's own."""

_ENDED_BY_OTHERS = frozenset({ExitKind.STOPPED, ExitKind.LOST})
"""The kinds of exits of replicas that were ended because of another one."""


def member_of(job: JobRecord, agent: str) -> PlacementMember | None:
    """The agent's part of the gang's current members; None if it has none."""
    members = job.placement.members if job.placement is not None else []
    return next((member for member in members if member.agent == agent), None)


def replicas_of(job: JobRecord, agent: str) -> list[int]:
    """The replicas that the agent is to run, or runs."""
    member = member_of(job, agent)
    return member.bundles if member is not None else []


def _runner_of(job: JobRecord, replica: int) -> PlacementMember:
    """The member that runs a replica."""
    members = job.placement.members if job.placement is not None else []
    return next((member for member in members if replica in member.bundles), PlacementMember(agent=""))


def runs_gang(job: JobRecord | None, attempt: int, agent: str) -> bool:
    """Whether the gang runs at this attempt with the agent as a member."""
    return (
        job is not None
        and job.status == Status.RUNNING
        and job.attempt == attempt
        and member_of(job, agent) is not None
    )


def is_whole(job: JobRecord, exits: Collection[int]) -> bool:
    """Whether every replica has left its exit."""
    return all(replica in exits for replica in range(job.spec.replicas))


def is_own_failure(end: AttemptExit) -> bool:
    """Whether a replica that ended so has failed by itself, or because of another one that is not known yet."""
    return end.kind != ExitKind.SUCCESS and end.kind not in _NO_FAILURE | _ENDED_BY_OTHERS


def unreadable_exit(job: JobRecord, replica: int, why: str, now: float) -> ReplicaExit:
    """The exit that stands for one that cannot be read: the replica has ended, and its host is to blame, not the job.

    It is nobody's, so whoever sees it ends the attempt: its member may have read it, and be done.
    """
    end = AttemptExit(kind=ExitKind.HOST_FAILED, message=f"its exit cannot be read: {why}")
    return ReplicaExit(agent="", host=_runner_of(job, replica).host, exit=end, ended_at=now)


def end_of_gang(
    job: JobRecord | None,
    attempt: int,
    agent: str,
    exits: Mapping[int, ReplicaExit],
    now: float,
    settings: ClusterSettings,
) -> JobRecord | None:
    """The write of a member whose replicas have ended; None: nothing, others will end it or have done so.

    Args:
        exits: those that are stored, listed after `job` was read, unless they are all. Of a member whose own have all
            ended well the others are needed only if they are all.
    """
    if job is None or not runs_gang(job, attempt, agent):
        return None
    whole = is_whole(job, exits)
    if whole and all(exits[n].exit.kind == ExitKind.SUCCESS for n in range(job.spec.replicas)):
        first = exits[0]
        used = total_usage(exits[n].exit.usage for n in range(job.spec.replicas))
        end = replace(_without_logs(first.exit), usage=used)
        fields = {"result": first.result, "outputs": first.outputs, "exit": end}
        return transition(job, Event.SUCCEED, ended_at=now, agent_deaths=0, **fields)
    if job.stop is not None:
        return stop_now(job, now, job.stop.reason, job.stop.by) if whole else None
    cause = _cause(job, agent, exits)
    if cause is None:
        return None
    left = exits[cause]
    told = f"replica {cause} on {left.host}: {left.exit.message or left.exit.kind}"
    holder = _holder(job, _runner_of(job, cause).agent)
    return after_exit(job, replace(_without_logs(left.exit), message=told), holder, now, settings)


def gang_without(
    job: JobRecord,
    attempt: int,
    agent: str,
    exits: Mapping[int, ReplicaExit],
    now: float,
    settings: ClusterSettings,
    why: str = "died",
) -> JobRecord | None:
    """The write for a member that is not alive, or has lost its replicas; None: nothing.

    Args:
        exits: as in `end_of_gang`.
        why: what the agent did, for people.
    """
    member = member_of(job, agent)
    if member is None or not runs_gang(job, attempt, agent):
        return None
    wanted, missing = _end_or_missing(job, attempt, agent, exits, now, settings)
    if wanted is not None or not missing:
        return wanted
    if job.stop is not None:
        return stop_now(job, now, job.stop.reason, job.stop.by)
    lost = AttemptExit(kind=ExitKind.LOST, message=f"replica {missing[0]} on {member.host}: its agent {agent} {why}")
    return after_loss(job, lost, _holder(job, agent), now, settings)


def gang_left(
    job: JobRecord,
    attempt: int,
    agent: str,
    exits: Mapping[int, ReplicaExit],
    now: float,
    settings: ClusterSettings,
) -> JobRecord | None:
    """The write of a member that has to leave, before it ends its replicas, so that no failure of others comes first.

    None: nothing; a stopped gang ends by the exits of all. exits: as in `end_of_gang`.
    """
    wanted, missing = _end_or_missing(job, attempt, agent, exits, now, settings)
    if wanted is not None or not missing or not runs_gang(job, attempt, agent) or job.stop is not None:
        return wanted
    holder = _holder(job, agent)
    message = f"replica {missing[0]} on {holder.host}: its agent {agent} was asked to leave"
    return after_exit(job, AttemptExit(kind=ExitKind.PREEMPTED, message=message), holder, now, settings)


def _end_or_missing(
    job: JobRecord,
    attempt: int,
    agent: str,
    exits: Mapping[int, ReplicaExit],
    now: float,
    settings: ClusterSettings,
) -> tuple[JobRecord | None, list[int]]:
    """The write that the agent's exits lead to, if they lead to one; and its replicas whose ends are not known."""
    if (unsure := _unsure_failure(job, agent, exits)) is not None:
        return None, [unsure]
    wanted = end_of_gang(job, attempt, agent, exits, now, settings)
    return wanted, [n for n in replicas_of(job, agent) if n not in exits]


def _unsure_failure(job: JobRecord, agent: str, exits: Mapping[int, ReplicaExit]) -> int | None:
    """The agent's replica that failed while others had not ended, whose hosts may be what has died; None if none did.

    Only a member that lives can find that out, before it writes the failure; of one that does not, it does not count.
    """
    if job.stop is not None or is_whole(job, exits):
        return None
    failed = (n for n in replicas_of(job, agent) if n in exits and is_own_failure(exits[n].exit))
    return next(failed, None)


def _cause(job: JobRecord, agent: str, exits: Mapping[int, ReplicaExit]) -> int | None:
    """The replica whose exit ended the attempt; None if those of the agent that have ended did so well.

    It is the first one that failed, unless the host of one explains that.
    """
    own = {*replicas_of(job, agent), *(n for n, left in exits.items() if not left.agent)}
    if all(exits[n].exit.kind == ExitKind.SUCCESS for n in own if n in exits):
        return None

    def rank(replica: int) -> tuple[int, float, int]:
        end = exits[replica]
        kind = 0 if end.exit.kind in _NO_FAILURE else 2 if end.exit.kind in _ENDED_BY_OTHERS else 1
        return kind, end.ended_at, replica

    return min((n for n in exits if exits[n].exit.kind != ExitKind.SUCCESS), key=rank)


def _without_logs(end: AttemptExit) -> AttemptExit:
    """A replica's exit as that of the gang: chunks of logs are counted in the replicas' own exits."""
    return replace(end, log_chunks=None)


def _holder(job: JobRecord, agent: str) -> JobLease:
    member = member_of(job, agent)
    return JobLease(agent=agent, host=member.host if member is not None else "", since=job.started_at or 0.0)
