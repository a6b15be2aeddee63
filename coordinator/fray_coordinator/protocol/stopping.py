"""Stopping a job.

**Invariant.** Once a stop is acknowledged, no later attempt starts.

**Unsafe sequence.** The stop's flag is set while the holder's requeue is on its way; the next attempt runs although it
was stopped.

**Why this cannot happen.** The flag lives in the job's record, so the requeue is rejected and decided again, and every
requeue of a job with the flag, by anyone, ends it STOPPED. A pending job is stopped by one write, whoever wins the
race.
"""

from msgspec.structs import replace

from fray_coordinator.protocol.transitions import Event, Status, is_waiting, transition
from fray_layouts.records import AttemptExit, JobRecord, StopRequest
from fray_layouts.states import ExitKind, StopOrigin


def request_stop(job: JobRecord, now: float, reason: str, by: str = StopOrigin.USER) -> JobRecord | None:
    """The record after a wish to stop the job; None if there is nothing to write (it ended, or was asked before).

    A running job whose record names no holder was damaged: nobody else can end it, since every commit needs one.
    """
    if is_waiting(job) or (job.status == Status.RUNNING and not holders_of(job)):
        return stop_now(job, now, reason, by)
    if job.status == Status.RUNNING and job.stop is None:
        return replace(job, stop=StopRequest(at=now, reason=reason, by=by))
    return None


def holders_of(job: JobRecord) -> list[str]:
    """Ids of the agents that run the job, or ran its last attempt; of a gang that gathers, of those that are to."""
    if job.placement is not None:
        return [member.agent for member in job.placement.members]
    return [job.lease.agent] if job.lease is not None else []


def stop_now(job: JobRecord, now: float, reason: str, by: str) -> JobRecord:
    """The record of a job that ends without having been run to an end."""
    wish = job.stop or StopRequest(at=now, reason=reason, by=by)
    return transition(
        job,
        Event.STOP,
        stop=wish,
        ended_at=now,
        exit=AttemptExit(kind=ExitKind.STOPPED, message=wish.reason or "stopped"),
    )
