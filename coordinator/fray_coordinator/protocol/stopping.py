"""Stop requests, and their cascade to the children of a job.

**Stop requests.**

**Invariant.** Once a stop is acknowledged, no later attempt starts.

**Unsafe sequence.**

1. Holder A sends a requeue of the job.
2. User U sets the stop flag.
3. The requeue is applied, and the next attempt runs although the job was stopped.

**Why this cannot happen.** The flag is in the job's record, so A's requeue is rejected and decided again. Every requeue
of a job with the flag ends it STOPPED instead, whoever writes it. A pending job is stopped by one write; if a claim was
applied first, U reads the record again and sets the flag.

**Cascade**: a child ends with the attempt of its parent that launched it.

**Invariant.** A child that is not detached runs only while its parent runs the attempt that the child names, and a
short time longer.

**Unsafe sequence.**

1. A parent's process freezes.
2. The reconciler's pass lists the parent's children and stops them.
3. The process wakes and submits one more child, which nobody stops.

**Why this cannot happen.** The `children/` entry is created before the child, so a later listing shows it, and the
reconciler lists the entries again until none is left. A claimer reads the child, then its parent, and then claims on
condition of that version of the child.
"""

from enum import Enum

from msgspec.structs import replace

from fray_coordinator.protocol.transitions import Event, Status, is_terminal, is_waiting, transition
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


class ChildVerdict(Enum):
    """The decision about a child."""

    KEEP = "keep"
    WAIT = "wait"
    STOP = "stop"


def judge_child(child: JobRecord, parent: JobRecord | None, now: float, adoption_time: float) -> ChildVerdict:
    """Whether the child may run.

    A child with an id of its own can be adopted: the parent's next attempt submits it again. So it waits for
    `adoption_time` seconds from the start of that attempt before it is stopped.

    Args:
        parent: the parent's record, read after the child's; None if there is none.
        now: the storage's clock.
    """
    link = child.parent
    if link is None or link.detached:
        return ChildVerdict.KEEP
    if parent is None or is_terminal(parent):
        return ChildVerdict.STOP
    if parent.status == Status.RUNNING and parent.attempt == link.attempt:
        return ChildVerdict.KEEP
    if child.spec.id and (parent.status != Status.RUNNING or now < (parent.started_at or now) + adoption_time):
        return ChildVerdict.WAIT
    return ChildVerdict.STOP


def cascade_reason(child: JobRecord) -> str:
    """The reason for which a child is stopped, for people. The parent may be a driver, on a laptop that slept."""
    parent = child.parent.job if child.parent else ""
    return f"its parent {parent} no longer runs: it has ended, or was silent for too long (killed, asleep or frozen)"


def adopted(child: JobRecord, parent: str, attempt: int) -> JobRecord | None:
    """The child as a child of a later attempt of the same parent; None if there is nothing to change."""
    link = child.parent
    if link is None or link.detached or is_terminal(child) or child.stop is not None:
        return None
    if link.job != parent or link.attempt >= attempt:
        return None
    return replace(child, parent=replace(link, attempt=attempt))
