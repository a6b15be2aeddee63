"""Job records as users see them: `JobInfo`, the reason of an end, and the exception that a job raised."""

import base64
import pickle

from fray.types import JobId, JobInfo, JobStatus, Namespace
from fray_coordinator.protocol.transitions import Status
from fray_layouts.escaping import one_line
from fray_layouts.object_keys import WorkKeys
from fray_layouts.records import AttemptExit, JobRecord

_STATUSES = {status.value: JobStatus(status.value) for status in Status if status is not Status.UNADMITTED}
_STATUSES[Status.UNADMITTED.value] = JobStatus.PENDING


def info_of(root: str, job: JobRecord) -> JobInfo:
    """What users are told about a job, from its record under the root URL `root`."""
    lease = job.lease or (job.history[-1] if job.history else None)
    status = _STATUSES.get(job.status, JobStatus.RUNNING)
    return JobInfo(
        job_id=JobId(job.id),
        name=job.spec.name,
        status=status,
        namespace=Namespace(job.spec.namespace),
        error_message=exit_reason(job.exit) if job.exit is not None and status is not JobStatus.SUCCEEDED else None,
        exit=job.exit,
        attempt=job.attempt,
        agent=lease.agent if lease else None,
        host=lease.host if lease else None,
        parent=JobId(job.parent.job) if job.parent else None,
        failures=job.failures,
        preemptions=job.preemptions,
        submit_time=job.submitted_at,
        start_time=job.started_at,
        end_time=job.ended_at,
        log_url=f"{root}/{WorkKeys.log(job.id, job.attempt, 0, 0).rpartition('/')[0]}/",
    )


def exit_reason(end: AttemptExit) -> str:
    """One line that says how an attempt ended, for people."""
    return one_line(f"{end.kind}: {end.message}" if end.message else end.kind)


def original_exception(end: AttemptExit | None) -> BaseException | None:
    """The exception that the job's callable raised; None if it raised none, or this process cannot load it."""
    if end is None or not end.data:
        return None
    try:
        loaded = pickle.loads(base64.b64decode(end.data))
    except Exception:  # its class may live in modules that only the job has; the message has the traceback anyway
        return None
    return loaded if isinstance(loaded, BaseException) else None
