"""The identity of a submitted job, when a submission finds an earlier job, and how a file of the inbox becomes one.

**Ids and namespaces.**

**Invariant.** A top-level job that names no namespace shares its namespace only with its descendants. A job that is
submitted again with the same id of its own is found again.

**Unsafe sequence.**

1. The namespace is made of the job's name. Users U and V both run a job named "train".
2. V's job launches a child whose name U's job has taken in that namespace.
3. V's job adopts U's child and returns its result.

**Why this cannot happen.** The namespace is the job's id. If the spec has an `id` of its own, the job's id is made from
it and the namespace that was named, if any, so it is the same at every submission.

**Resubmission** under an id of one's own: the earlier job is found if it runs the same.

**Invariant.** A submission under an id gives its submitter a job that runs what was asked for, or an error.

**Unsafe sequence.**

1. Submitter A submits a job under an id.
2. Submitter B submits another command under the same id.
3. B finds A's job, and believes that its own command has run.

**Why this cannot happen.** `first_difference` names a field in which the two specs differ. It compares neither two
callables nor their workspaces, since the same callable pickles differently from process to process. The standard input
and the workspaces of commands are compared by their content, since each month has its own key for the same content.

**Admission** of files that people drop into the inbox.

**Invariant.** Each version of a dropped file becomes exactly one job, however many agents see the file and whenever
they die.

**Unsafe sequence.**

1. Agents A and B read the same file.
2. A admits it, runs the job and deletes the file.
3. B, which was slow, creates the job again.

Or: A admits a file that names a parent and dies. The parent ends, and B rejects the file of a job that has run.

Or: a person overwrites the file between the read and the admission, and the old version runs although nobody wants it
any more.

**Why this cannot happen.** The job's id is a function of key, version and time, so A and B create the same record. The
record is created UNADMITTED, and nobody can claim it yet. It is admitted only if the inbox still holds that version
afterwards, and withdrawn otherwise. An admitted record is never taken back, and retention keeps a record while the
inbox holds its version. A file is rejected for its parent's sake only if it has no record, and only once the parent has
ended: a parent that is preempted runs again. A record that is created after its job was archived is deleted before it
is admitted. On local files, the time and the inode of a file can repeat while people work on it. So an agent first
renames the file to a name that was never used before; that name and the time in it then stand for key and time.
"""

import hashlib
from collections.abc import Iterable
from enum import Enum
from typing import Any

import msgspec
from msgspec.structs import replace

from fray_coordinator.protocol.stopping import stop_now
from fray_coordinator.protocol.transitions import Event, Status, is_terminal, transition
from fray_layouts.errors import InvalidInput
from fray_layouts.key_encoding import digest_text
from fray_layouts.object_keys import JobIds, ReservationKeys
from fray_layouts.records import InboxOrigin, JobRecord, NameRecord
from fray_layouts.spec import CallableSpec, EnvironmentSpec, JobSpec, is_gang
from fray_layouts.states import StopOrigin
from fray_layouts.work_keys import InboxKeys


def identify(spec: JobSpec, parent: JobRecord | None, fresh: str) -> tuple[str, JobSpec]:
    """The job's id, and its spec with namespace and user filled in.

    fresh: the id for a job whose spec has no `id` of its own.
    """
    namespace = spec.namespace or (parent.spec.namespace if parent else "")
    job = JobIds.given(namespace, spec.name, spec.id) if spec.id else fresh
    return job, replace(spec, namespace=namespace or job, user=spec.user or (parent.spec.user if parent else ""))


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


class ParentVerdict(Enum):
    """What the parent that a dropped spec names says about it."""

    RUNS = "runs"
    """It runs, or the spec names none."""
    WAITS = "waits"
    """It does not run now, but may run again: a preempted parent comes back within moments."""
    OVER = "over"
    """It has ended or does not exist."""


def judge_parent(spec: JobSpec, parent: JobRecord | None) -> ParentVerdict:
    """Judge a spec that was dropped by its parent's record; None: there is no such record.

    It counts only for files that have no job yet: an admission that was begun is finished whatever the parent does.
    """
    if not spec.parent:
        return ParentVerdict.RUNS
    if parent is None or is_terminal(parent):
        return ParentVerdict.OVER
    return ParentVerdict.RUNS if parent.status == Status.RUNNING else ParentVerdict.WAITS


def record_of_drop(key: str, version: str, updated: float, spec: JobSpec, parent: JobRecord | None = None) -> JobRecord:
    """The unadmitted record of a dropped spec. Everybody who read the same version makes the same record.

    updated: the storage's time of the drop, or of the rename on local files. So the same bytes dropped again later are
    a new job.
    """
    origin = InboxOrigin(key=InboxKeys.dropped_as(key), version=version)
    if key != origin.key:
        origin.staged_key = key
    token = digest_text(hashlib.sha256(f"{key}\n{version}\n{updated}".encode()).digest())
    job_id, spec = identify(spec, parent, JobIds.fresh(spec.name, updated, token))
    return JobRecord(id=job_id, spec=spec, status=str(Status.UNADMITTED), submitted_at=updated, inbox=origin)


def admit_or_withdraw(job: JobRecord, version_in_inbox: str | None, now: float) -> JobRecord | None:
    """The record once it is admitted or withdrawn; None if that was decided before.

    version_in_inbox: what the inbox holds under the record's key, read *after* `job` was read or created.
    """
    if job.status != Status.UNADMITTED or job.inbox is None:
        return None
    if version_in_inbox == job.inbox.version:
        return transition(job, Event.GATHER if is_gang(job.spec) else Event.ADMIT)
    return stop_now(job, now, "its file in the inbox was changed or removed before it was admitted", by=StopOrigin.USER)
