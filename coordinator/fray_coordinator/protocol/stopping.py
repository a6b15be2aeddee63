"""Stop requests.

**Invariant.** Once a stop is acknowledged, no later attempt starts.

**Unsafe sequence.**

1. Holder A sends a requeue of the job.
2. User U sets the stop flag.
3. The requeue is applied, and the next attempt runs although the job was stopped.

**Why this cannot happen.** The flag is in the job's record, so A's requeue is rejected and decided again. Every requeue
of a job with the flag ends it STOPPED instead, whoever writes it. A pending job is stopped by one write; if a claim was
applied first, U reads the record again and sets the flag.
"""

from msgspec.structs import replace

from fray_coordinator.protocol.transitions import Event, Status, is_waiting, transition
from fray_layouts.records import AttemptExit, JobRecord, StopRequest
from fray_layouts.states import ExitKind, StopOrigin


def request_stop(job: JobRecord, now: float, reason: str, by: str = StopOrigin.USER) -> JobRecord | None:
    """The record with a request to stop the job; None if it has ended or has a request already.

    If the record of a running job names no holder, it was damaged. Every commit needs a holder, so nobody else can end
    the job, and it is ended here.
    """
    if is_waiting(job) or (job.status == Status.RUNNING and not holders_of(job)):
        return stop_now(job, now, reason, by)
    if job.status == Status.RUNNING and job.stop is None:
        return replace(job, stop=StopRequest(at=now, reason=reason, by=by))
    return None


def holders_of(job: JobRecord) -> list[str]:
    """Ids of the agents that run the job, or ran its last attempt; of a gang that gathers, those that are to run it."""
    if job.placement is not None:
        return [member.agent for member in job.placement.members]
    return [job.lease.agent] if job.lease is not None else []


def stop_now(job: JobRecord, now: float, reason: str, by: str) -> JobRecord:
    """The record of a job that ends STOPPED without running to its end."""
    request = job.stop or StopRequest(at=now, reason=reason, by=by)
    return transition(
        job,
        Event.STOP,
        stop=request,
        ended_at=now,
        exit=AttemptExit(kind=ExitKind.STOPPED, message=request.reason or "stopped"),
    )
