"""Checks of what a cluster's methods are given; the errors say what to give instead, or which backend supports it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fray.types import BinaryEntrypoint, CallableEntrypoint, Duration, JobRequest
from fray_layouts.errors import InvalidInput
from fray_layouts.spec import JobSpec
from fray_layouts.units import parse_seconds

LAUNCH = 'cluster.launch(JobRequest("name", Entrypoint.from_callable(function, args=(...))))'
SUBMIT = LAUNCH.replace("cluster.launch", "client.submit")
"""The right forms of calls that launch a job."""


def checked_request(given: object, field: str = "request") -> JobRequest:
    """Return the argument if it is a JobRequest. Raises InvalidInput if it is not."""
    match given:
        case JobRequest():
            return given
        case list() | tuple():
            remedy = "give one JobRequest; launch_many launches several"
        case BinaryEntrypoint():
            remedy = 'give a JobRequest: JobRequest("name", Entrypoint.from_binary(program, [...]))'
        case CallableEntrypoint():
            remedy = 'give a JobRequest: JobRequest("name", Entrypoint.from_callable(function, args=(...)))'
        case _ if callable(given):
            name = getattr(given, "__name__", "function")
            remedy = f'give a JobRequest: JobRequest("name", Entrypoint.from_callable({name}))'
        case _:
            remedy = 'give a JobRequest: JobRequest("name", Entrypoint.from_callable(function))'
    raise InvalidInput(field, given, remedy)


def checked_requests(given: object) -> list[JobRequest]:
    """Return the argument as a list if it is an iterable of JobRequests. Raises InvalidInput if it is not."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        remedy = "give a list of JobRequests; launch(request) launches one"
        raise InvalidInput("requests", given, remedy)
    return [checked_request(each, f"requests[{number}]") for number, each in enumerate(given)]


def checked_id(given: object, field: str = "job_id") -> str:
    """Return the argument if it is a string, as job ids are. Raises InvalidInput if it is not."""
    if isinstance(given, str):
        return given
    if isinstance(given, JobRequest):
        remedy = "launch it first, and give the id that launch returns"
    elif isinstance(getattr(given, "job_id", None), str):
        remedy = f"give its id: {type(given).__name__}.job_id"
    else:
        remedy = "give the id of one job, as launch returned it"
    raise InvalidInput(field, given, remedy)


def checked_ids(given: object) -> list[str]:
    """Return the argument as a list if it is one job id or several. Raises InvalidInput if it is not."""
    if given is None:
        raise InvalidInput("job_id", None, "give the id of a job, or several")
    if isinstance(given, str) or not isinstance(given, Iterable):
        return [checked_id(given)]
    return [checked_id(each, f"job_id[{number}]") for number, each in enumerate(given)]


def checked_timeout(given: Duration | None) -> float | None:
    """The seconds of a time-out; None for none. Raises InvalidInput if it is no duration."""
    return None if given is None else parse_seconds("timeout", given)


ONLY_IN_STORAGE = "only a cluster in storage supports it: use StorageClient(root), or leave it out"
"""The remedy for fields that neither Ray nor Iris has a counterpart for."""


def check_unsupported(
    spec: JobSpec, job: Mapping[str, str], resources: Mapping[str, str], environment: Mapping[str, str]
) -> None:
    """Check that a spec uses no field that its backend does not support.

    Args:
        job, resources, environment: the unsupported fields of the spec and of these parts of it, each with its remedy.

    Raises:
        InvalidInput: one of the fields does not have its default value; the error has the remedy.
    """
    defaults = JobSpec(name=spec.name, entrypoint=spec.entrypoint)
    for prefix, part, default, remedies in (
        ("resources.", spec.resources, defaults.resources, resources),
        ("environment.", spec.environment, defaults.environment, environment),
        ("", spec, defaults, job),
    ):
        _check(prefix, part, default, remedies)


def _check(prefix: str, part: Any, default: Any, remedies: Mapping[str, str]) -> None:
    for name, remedy in remedies.items():
        if (value := getattr(part, name)) != getattr(default, name):
            raise InvalidInput(f"{prefix}{name}", value, remedy)
