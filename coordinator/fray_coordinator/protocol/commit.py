"""Commit: how an attempt ends, by its holder's write or by the requeue of a job whose holder lost it.

**Invariant.** At most one result is committed, by the attempt that the record names. A complete result under a lease
that still holds is never thrown away. A stopped job is not restarted.

**Unsafe sequence.**

1. Agent A holds the job and finishes it. A user sets the stop flag in the record.
2. A's commit is rejected, because the record has changed.
3. A believes that it has lost its lease, and throws a finished result away.

Or: A is declared dead, its job is requeued and runs again on agent B, and A commits over it.

**Why this cannot happen.** After a rejected commit the holder decides again on the current record. It gives up only if
the attempt or the lease differs, or if the job has ended. A requeue raises the attempt in the same write that takes the
lease away.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from fray_coordinator.protocol.claiming import holds_attempt
from fray_coordinator.protocol.retries import after_exit, after_loss, fail_for_good
from fray_coordinator.protocol.stopping import stop_now
from fray_coordinator.protocol.transitions import Event, Status, transition
from fray_layouts.records import (
    AttemptExit,
    ClusterSettings,
    JobRecord,
    JobResult,
    KeptOutputs,
)
from fray_layouts.states import ExitKind


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of an attempt, as its holder saw it.

    Attributes:
        exit: the kinds "success", "preempted", "start-failed" and "host-failed" decide what follows; any other kind is
            the job's own failure.
        result: where the return value is stored, if the attempt succeeded.
        complete_before_stop: the result was complete before SIGTERM was sent because of a stop.
        restart: after a failure of its own the job can run again at once on this holder.
        outputs: where the files that it left are stored.
    """

    exit: AttemptExit
    result: JobResult | None = None
    complete_before_stop: bool = True
    restart: bool = False
    outputs: KeptOutputs | None = None


def end_of_attempt(
    job: JobRecord | None, attempt: int, agent: str, ending: AttemptEnd, now: float, settings: ClusterSettings
) -> JobRecord | None:
    """The holder's write at the end of `attempt`. The holder asks again for every version of the record that it finds.

    None: the holder has the attempt no longer, or its end is already written.
    """
    if job is None or not holds_attempt(job, attempt, agent):
        return None
    if ending.exit.kind == ExitKind.SUCCESS and (job.stop is None or ending.complete_before_stop):
        left = {"result": ending.result, "outputs": ending.outputs}
        return transition(job, Event.SUCCEED, ended_at=now, exit=ending.exit, **left, agent_deaths=0)
    if job.stop is not None:
        ended = stop_now(job, now, job.stop.reason, job.stop.by)
        return replace(ended, exit=replace(ending.exit, kind=ExitKind.STOPPED, message=job.stop.reason or "stopped"))
    assert job.lease is not None, "who holds an attempt has its lease"
    return after_exit(job, ending.exit, job.lease, now, settings, ending.restart)


def requeue_lost(
    job: JobRecord, agent: str, now: float, settings: ClusterSettings, why: str = "died"
) -> JobRecord | None:
    """The write that takes a RUNNING job from an agent that has lost it; None if that agent does not hold it.

    Args:
        agent: it is dead or absent, or it lives and has dropped the job (`protocol.failure_detection`).
        why: what the agent did, for people.
    """
    if job.status != Status.RUNNING or job.lease is None or job.lease.agent != agent:
        return None
    lost = AttemptExit(kind=ExitKind.LOST, message=f"its agent {agent} {why}")
    if job.stop is not None:
        return stop_now(job, now, job.stop.reason, job.stop.by)
    if job.driver:
        lost.message = (
            "the program sent no more heartbeats (killed, asleep or frozen); the jobs that it owned end with it"
        )
        return fail_for_good(job, lost, now, "")
    return after_loss(job, lost, job.lease, now, settings)
