"""Resubmission under an id of one's own: the earlier job is found if it runs the same.

**Invariant.** A submission under an id gives its submitter a job that runs what was asked for, or an error.

**Unsafe sequence.**

1. Submitter A submits a job under an id.
2. Submitter B submits another command under the same id.
3. B finds A's job, and believes that its own command has run.

**Why this cannot happen.** `first_difference` names a field in which the two specs differ. It compares neither two
callables nor their workspaces, since the same callable pickles differently from process to process. The standard input
and the workspaces of commands are compared by their content, since each month has its own key for the same content.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from fray_coordinator.protocol.transitions import is_terminal
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import JobRecord, NameRecord
from fray_layouts.spec import CallableSpec, EnvironmentSpec, JobSpec


def check_resubmission(earlier: JobRecord, wanted: JobRecord) -> None:
    """Raise InvalidInput unless the job found under the id of `wanted` runs the same."""
    if field := first_difference(earlier.spec, wanted.spec):
        remedy = f"job {earlier.id} was submitted under it with another {field}; give another id, or the same {field}"
        raise InvalidInput("id", wanted.spec.id, remedy)


def retry_obstacle(job: JobRecord, name: NameRecord | None) -> str:
    """Why this job cannot be submitted again, and what to do; "" if it can.

    An actor or a worker belongs to the program that created it: without that program nobody would use it, or end it. A
    detached actor belongs to nobody, and the last holder of its name can have the name again.

    name: of a job that serves an actor, the record of the actor's name; None if there is none.
    """
    if job.driver:
        return "it is a program that people start; start its program again"
    if not is_terminal(job):
        return f"only jobs that have ended can be submitted again: it is {job.status}; stop it or wait for its end"
    owned = bool(job.spec.parent) and not job.spec.detached
    if job.spec.actor and (owned or name is None or name.job != job.id):
        return "it serves an actor or a pool of the program that created it; run that program again"
    return ""


def first_difference(one: JobSpec, other: JobSpec) -> str:
    """The first field in which two specs differ; "" if there is none.

    User and parent make no difference. Neither does a reservation: jobs enter one by themselves while it exists.
    """
    if ReservationKeys.of_pool(one.pool) or ReservationKeys.of_pool(other.pool):
        one, other = replace(one, pool=""), replace(other, pool="")
    return ".".join(_difference(_comparable(one), _comparable(other)) or [])


def _comparable(spec: JobSpec) -> JobSpec:
    entrypoint, environment = spec.entrypoint, comparable_environment(spec.environment)
    if entrypoint.callable is not None:
        entrypoint = replace(entrypoint, callable=CallableSpec())
        environment = replace(environment, workspace=None)
    entrypoint = replace(entrypoint, stdin=entrypoint.stdin.rpartition("/")[2])
    return replace(spec, entrypoint=entrypoint, environment=environment, user="", parent="", detached=False)


def comparable_environment(environment: EnvironmentSpec) -> EnvironmentSpec:
    """The environment with a workspace that equals any other of the same content, in whatever month it was stored."""
    workspace = environment.workspace
    if workspace is None:
        return environment
    return replace(environment, workspace=replace(workspace, blob=workspace.blob.rpartition("/")[2]))


def _difference(one: object, other: object) -> list[str] | None:
    """The path to the first part in which two values differ; None if they are equal."""
    if one == other:
        return None
    for name in _parts(one) if type(one) is type(other) else ():
        if (inner := _difference(_part(one, name), _part(other, name))) is not None:
            return [name, *inner]
    return []


def _parts(value: object) -> Iterable[str]:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    return sorted(value) if isinstance(value, dict) else ()


def _part(value: Any, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else getattr(value, name)
