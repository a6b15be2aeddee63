"""Results of jobs: fetched from the storage, and decoded as what was returned."""

import base64
import pickle
from typing import Any

import msgspec

from fray.errors import NoResult
from fray_coordinator.core import Core
from fray_coordinator.errors import describe_error
from fray_layouts.records import JobRecord, JobResult


async def fetch_result(core: Core, job: JobRecord) -> tuple[JobResult, bytes]:
    """Read the result of a job that succeeded: its record, and its bytes (none for a value that is in the record).

    Raises NoResult: the job has none, or its bytes are gone or damaged.
    """
    found = job.result
    if found is None:
        remedy = "only a callable returns one, or a command that writes the file FRAY_RESULT names"
        raise NoResult(f"job {job.id} has no result; {remedy}")
    if not found.key:
        return found, _decoded(job.id, found.data)
    stored = await core.store.get(found.key)
    if stored is None:
        raise NoResult(f"the result of job {job.id} is gone: there is no object {found.key}")
    return found, stored.data


def _decoded(job_id: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise NoResult(f"the result of job {job_id} is no base64: {error}") from None


def decode_result(result: JobResult, data: bytes) -> Any:
    """Decode what the job returned. Unpickling runs the user's code, so call it in the user's thread.

    Raises NoResult: the bytes are not what the encoding says, or unpickling needs modules that are not here.
    """
    try:
        match result.encoding:
            case "json":
                return msgspec.json.decode(data) if result.key else result.value
            case "pickle":
                return pickle.loads(data)
    except Exception as error:
        remedy = "read it where the modules are that it needs; if they are here, it is damaged"
        raise NoResult(f"the result cannot be read as {result.encoding} ({describe_error(error)}); {remedy}") from error
    return data
