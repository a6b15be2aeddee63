"""The end of an attempt: its holder's commit, and the put-back of what its holder has lost.

**Invariant.** At most one result is committed, by the attempt that the record names; a result complete under a lease
that still stands is never thrown away; a stopped job is not restarted.

**Unsafe sequence.** The holder's commit is rejected because a stop's flag came in between; the holder takes that for a
lost lease and discards a finished result. Or: the agent is declared dead, its job is put back and runs again, and the
first holder commits over it.

**Why this cannot happen.** A rejected commit is decided again on the current record, which is discarded only if attempt
or lease differ or the job has ended; and a put-back raises the attempt in the same write that takes the lease away.
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
        exit: its kind "success", "preempted", "start-failed" and "host-failed" decide what follows; any other is the
            job's failure.
        result: where the return value is, for a success; `outputs`: where the files are that it left.
        complete_before_stop: the result was complete before SIGTERM was sent for a stop.
        restart: the holder can run the job again at once, after a failure of its own.
    """

    exit: AttemptExit
    result: JobResult | None = None
    complete_before_stop: bool = True
    restart: bool = False
    outputs: KeptOutputs | None = None


def end_of_attempt(
    job: JobRecord | None, attempt: int, agent: str, ending: AttemptEnd, now: float, settings: ClusterSettings
) -> JobRecord | None:
    """The holder's write at the end of `attempt`, decided anew on every record that it meets.

    None: the attempt is not the holder's any more, or its end is written.
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
        agent: dead, absent, or one that lives and has dropped the job (`protocol.dropped_jobs`).
        why: what the agent did, for people.
    """
    if job.status != Status.RUNNING or job.lease is None or job.lease.agent != agent:
        return None
    lost = AttemptExit(kind=ExitKind.LOST, message=f"its agent {agent} {why}")
    if job.stop is not None:
        return stop_now(job, now, job.stop.reason, job.stop.by)
    if job.driver:
        lost.message = "the program was not heard of any more; what it owned ends with it"
        return fail_for_good(job, lost, now, "")
    return after_loss(job, lost, job.lease, now, settings)
