"""Submitting again under an id of one's own: the job that was submitted first is found, if it runs the same.

**Invariant.** Whoever submits under an id gets a job that runs what he asked for, or an error.

**Unsafe sequence.** The second submission has another command, finds the first job, and its submitter believes that his
has run.

**Why this cannot happen.** `first_difference` names a field in which the two differ. Of two callables nothing is
compared, nor are their workspaces: the same one pickles differently from process to process. What two commands read,
and their workspaces, are compared by their content: the same one is stored under each month's key.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import JobRecord
from fray_layouts.spec import CallableSpec, EnvironmentSpec, JobSpec


def check_resubmission(earlier: JobRecord, wanted: JobRecord) -> None:
    """Raise InvalidInput unless the job found under the id of `wanted` runs the same."""
    if field := first_difference(earlier.spec, wanted.spec):
        remedy = f"job {earlier.id} was submitted under it with another {field}; give another id, or the same {field}"
        raise InvalidInput("id", wanted.spec.id, remedy)


def first_difference(one: JobSpec, other: JobSpec) -> str:
    """The first field in which two specs differ; "" if there is none.

    Who the user and the parent are makes no difference, nor does a reservation: jobs go into one by themselves while
    there is one.
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
    """The environment, equal to others whose workspace has the same content, in whatever month it was stored."""
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
