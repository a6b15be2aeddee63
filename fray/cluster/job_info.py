"""Converts job records into what users see: `JobInfo`, the reason of an end, the job's exception, and its result."""

import base64
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from fray.errors import JobFailed, NoResult
from fray.types import JobId, JobInfo, JobStatus, Namespace
from fray_coordinator.concurrency import map_concurrently
from fray_coordinator.core import Core
from fray_coordinator.errors import describe_error
from fray_coordinator.jobs.lookup import check_replica
from fray_coordinator.protocol.transitions import Status
from fray_layouts.escaping import one_line
from fray_layouts.records import AttemptExit, JobRecord, JobResult, PlacementMember, ReplicaExit
from fray_layouts.spec import is_gang
from fray_layouts.work_keys import WorkKeys

_WAITING = (Status.UNADMITTED, Status.GATHERING)
_STATUSES = {status.value: JobStatus(status.value) for status in Status if status not in _WAITING}
_STATUSES |= dict.fromkeys((status.value for status in _WAITING), JobStatus.PENDING)


def info_of(root: str, job: JobRecord) -> JobInfo:
    """Make the JobInfo of a job from its record under the root URL `root`."""
    places = _places(job)
    first = places.get(0) or job.lease or (job.history[-1] if job.history else None)
    status = _STATUSES.get(job.status, JobStatus.RUNNING)
    return JobInfo(
        job_id=JobId(job.id),
        name=job.spec.name,
        status=status,
        namespace=Namespace(job.spec.namespace),
        error_message=exit_reason(job.exit) if job.exit is not None and status is not JobStatus.SUCCEEDED else None,
        exit=job.exit,
        attempt=job.attempt,
        agent=first.agent if first else None,
        host=first.host if first else None,
        replicas=job.spec.replicas,
        hosts=tuple(places[replica].host for replica in sorted(places)),
        parent=JobId(job.parent.job) if job.parent else None,
        failures=job.failures,
        preemptions=job.preemptions,
        submit_time=job.submitted_at,
        start_time=job.started_at,
        end_time=job.ended_at,
        log_url=f"{root}/{WorkKeys.log(job.id, job.attempt, 0, 0).rpartition('/')[0]}/",
    )


def _places(job: JobRecord) -> dict[int, PlacementMember]:
    """The member that has each replica of a gang, by the replica's number; empty for any other job."""
    members = job.placement.members if job.placement is not None else []
    return {replica: member for member in members for replica in member.bundles}


def exit_reason(end: AttemptExit) -> str:
    """One line for people that says how an attempt ended."""
    return one_line(f"{end.kind}: {end.message}" if end.message else end.kind)


def last_attempt(job: JobRecord) -> str:
    """One clause for people that says how the job's last attempt ended; "" if none has ended."""
    last = job.history[-1] if job.history else None
    return f"attempt {last.attempt} ended: {exit_reason(last.exit)}" if last is not None else ""


def original_exception(end: AttemptExit | None) -> BaseException | None:
    """The exception that the job's callable raised; None if there is none, or if this process cannot load it."""
    if end is None or not end.data:
        return None
    try:
        loaded = pickle.loads(base64.b64decode(end.data))
    except BaseException:  # its class may be in a module that only the job has; the message has the traceback anyway
        return None
    return loaded if isinstance(loaded, BaseException) else None


def _how_to_stop(jobs: Sequence[str]) -> str:
    return "`cluster.terminate(job)` stops one"


def waited_infos(
    root: str,
    ids: Sequence[str],
    records: Mapping[str, JobRecord],
    raise_on_failure: bool,
    how_to_stop: Callable[[Sequence[str]], str] = _how_to_stop,
) -> list[JobInfo]:
    """What `Cluster.wait` returns for these jobs. With `raise_on_failure` it raises JobFailed for the first failure.

    how_to_stop: as for `raise_first_failure`.
    """
    infos = [info_of(root, records[job]) for job in ids]
    if raise_on_failure:
        raise_first_failure(infos, how_to_stop)
    return infos


def raise_first_failure(infos: Sequence[JobInfo], how_to_stop: Callable[[Sequence[str]], str] = _how_to_stop) -> None:
    """Raise JobFailed for the first job that has ended without success, with a note of how many others go on.

    how_to_stop: says in a clause how to stop the jobs of these ids.
    """
    for info in infos:
        if info.status.finished() and info.status is not JobStatus.SUCCEEDED:
            error = JobFailed.of(info)
            if others := [other.job_id for other in infos if not other.status.finished()]:
                count = (
                    "1 other job of this wait goes"
                    if len(others) == 1
                    else f"{len(others):,} other jobs of this wait go"
                )
                error.add_note(f"fray: {count} on; {how_to_stop(others)}")
            raise error from original_exception(info.exit)


async def fetch_result(core: Core, job: JobRecord, replica: int | None = None) -> tuple[JobResult, bytes]:
    """Read the result of a job that succeeded.

    Returns its record and its bytes. For a JSON value that is in the record there are no bytes.

    Args:
        replica: number of the replica of a gang whose result is wanted. None: the job's result, which is replica 0's.

    Raises:
        NoResult: the job has no result, or its bytes are missing or damaged.
        InvalidInput: there is no such replica.
    """
    if replica is None:
        return await _fetch(core, f"job {job.id}", job.result)
    check_replica(job, replica)
    if not is_gang(job.spec):
        return await _fetch(core, f"job {job.id}", job.result)
    left = await core.records.read(WorkKeys.exit(job.id, job.attempt, replica), ReplicaExit)
    return await _fetch(core, f"replica {replica} of job {job.id}", left.record.result if left else None)


async def fetch_results(core: Core, job: JobRecord) -> list[tuple[JobResult, bytes]]:
    """`fetch_result` of every replica, in order."""
    return await map_concurrently(range(job.spec.replicas), lambda replica: fetch_result(core, job, replica))


async def _fetch(core: Core, whose: str, found: JobResult | None) -> tuple[JobResult, bytes]:
    if found is None:
        raise no_result(whose)
    if not found.key:
        return found, _decoded(whose, found.data)
    stored = await core.store.get(found.key)
    if stored is None:
        raise NoResult(f"the result of {whose} is gone: there is no object {found.key}")
    return found, stored.data


def no_result(whose: str) -> NoResult:
    """The error for a job or replica that has succeeded without a result. whose: such as "job train-1"."""
    remedy = "only callables have one, and commands that write the file that FRAY_RESULT names"
    return NoResult(f"{whose} has no result; {remedy}")


def _decoded(whose: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise NoResult(f"the result of {whose} is damaged, it is not base64: {error}") from None


def decode_result(result: JobResult, data: bytes) -> Any:
    """Decode a job's result. Unpickling runs the user's code, so call it in the user's thread.

    Raises NoResult if the bytes do not match the encoding, or if unpickling needs modules that are missing here.
    """
    try:
        match result.encoding:
            case "json":
                return msgspec.json.decode(data) if result.key else result.value
            case "pickle":
                return pickle.loads(data)
    except Exception as error:
        remedy = "read it in a program that has the modules it needs; if this one has them, the result is damaged"
        raise NoResult(f"the result cannot be read as {result.encoding} ({describe_error(error)}); {remedy}") from error
    return data
