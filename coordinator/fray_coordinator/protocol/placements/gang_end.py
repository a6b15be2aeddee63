"""The end of a gang's attempt, decided by the exits that its replicas have stored.

**Invariant.** An attempt succeeds only when every replica has succeeded. A complete result is never thrown away. One
failure is counted once. A stop is final. A gang does not run on without one of its replicas.

**Unsafe sequence.**

1. All replicas of a gang succeed. Members A and B each run one.
2. A looks for the exits before B has stored the last one, and B does not look at all.
3. Nobody writes the success.

Or: B stores its replica's exit and dies; B is reaped, the gang is requeued, and the result of all replicas is lost. Or:
B was frozen, and writes its failure onto the next attempt.

**Why this cannot happen.** Every member looks after it has stored its own exit, so the last one sees all of them.
Whoever reaps a member first makes the write that the member's stored exit calls for. And each write is made on
condition of a record that is at this attempt and names that member.
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

_NO_FAILURE = frozenset({ExitKind.PREEMPTED, ExitKind.YIELDED, ExitKind.HOST_FAILED, ExitKind.START_FAILED})
"""The kinds of exits that explain the failures of other replicas, and are no failure of the job."""

_ENDED_BY_OTHERS = frozenset({ExitKind.STOPPED, ExitKind.LOST})
"""The kinds of exits of replicas that ended because of another replica."""


def member_of(job: JobRecord, agent: str) -> PlacementMember | None:
    """The agent among the gang's present members; None if it is not one of them."""
    members = job.placement.members if job.placement is not None else []
    return next((member for member in members if member.agent == agent), None)


def replicas_of(job: JobRecord, agent: str) -> list[int]:
    """The replicas that the agent runs, or is to run."""
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
    """Whether every replica has stored its exit."""
    return all(replica in exits for replica in range(job.spec.replicas))


def is_own_failure(end: AttemptExit) -> bool:
    """Whether the replica failed by itself, or because of another one of which nothing is known yet."""
    return end.kind != ExitKind.SUCCESS and end.kind not in _NO_FAILURE | _ENDED_BY_OTHERS


def unreadable_exit(job: JobRecord, replica: int, why: str, now: float) -> ReplicaExit:
    """The exit that stands for one that cannot be read: the replica has ended, and its host is to blame, not the job.

    It names no agent, so any member that sees it ends the attempt: the replica's own member may have read the exit
    before, and then does not read it again.
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
    """The write of a member whose replicas have ended; None if others will end the attempt or have ended it.

    Args:
        exits: the stored ones, listed after `job` was read, unless they are complete. If all of the member's own
            replicas succeeded, the exits of others are needed only if every replica has one.
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
    message = f"replica {cause} on {left.host}: {left.exit.message or left.exit.kind}"
    holder = _holder(job, _runner_of(job, cause).agent)
    return after_exit(job, replace(_without_logs(left.exit), message=message), holder, now, settings)


def gang_without(
    job: JobRecord,
    attempt: int,
    agent: str,
    exits: Mapping[int, ReplicaExit],
    now: float,
    settings: ClusterSettings,
    why: str = "died",
    may_run: bool = False,
) -> JobRecord | None:
    """The write for a member that is not alive, or has lost its replicas; None if there is nothing to write.

    Args:
        exits: as in `end_of_gang`.
        why: what the agent did, for people.
        may_run: whether its replicas may still run. The next attempt waits for their end; a stopped gang has none, so
            it is not ended.
    """
    member = member_of(job, agent)
    if member is None or not runs_gang(job, attempt, agent):
        return None
    wanted, missing = _end_or_missing(job, attempt, agent, exits, now, settings)
    if wanted is not None or not missing:
        return wanted
    if job.stop is not None:
        return None if may_run else stop_now(job, now, job.stop.reason, job.stop.by)
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
    """The write of a member that must leave, made before it ends its replicas; None if there is nothing to write.

    So no failure of other replicas comes first. A stopped gang ends by the exits of all replicas. exits: as in
    `end_of_gang`.
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
    """The write that follows from the agent's exits, if one does, and the agent's replicas without a known end."""
    if (unsure := _unsure_failure(job, agent, exits)) is not None:
        return None, [unsure]
    wanted = end_of_gang(job, attempt, agent, exits, now, settings)
    return wanted, [n for n in replicas_of(job, agent) if n not in exits]


def _unsure_failure(job: JobRecord, agent: str, exits: Mapping[int, ReplicaExit]) -> int | None:
    """The agent's replica that failed while others had not ended; None if there is none.

    A dead host of another replica may be the real cause. Only a live member can find that out, before it writes the
    failure; if the member itself is dead, its failure does not count.
    """
    if job.stop is not None or is_whole(job, exits):
        return None
    failed = (n for n in replicas_of(job, agent) if n in exits and is_own_failure(exits[n].exit))
    return next(failed, None)


def _cause(job: JobRecord, agent: str, exits: Mapping[int, ReplicaExit]) -> int | None:
    """The replica whose exit ended the attempt; None if every replica of the agent that has ended succeeded.

    It is the first replica that failed, unless the exit of another one shows that its host was the cause.
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
    """A replica's exit as the gang's. Its log chunks are left out, since they are counted in the replica's own exit."""
    return replace(end, log_chunks=None)


def _holder(job: JobRecord, agent: str) -> JobLease:
    member = member_of(job, agent)
    return JobLease(agent=agent, host=member.host if member is not None else "", since=job.started_at or 0.0)
