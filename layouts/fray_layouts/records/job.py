"""The record of a job and its parts, and the record of a dropped file that was rejected."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from fray_layouts.bounds import Amount, AttemptNumber, Count, Id, Key, MaybeId, Number, Seconds, Time
from fray_layouts.errors import InvalidInput
from fray_layouts.records.base import Record
from fray_layouts.records.outputs import KeptOutputs
from fray_layouts.records.placement import Ancestors, Placement, check_ancestors
from fray_layouts.spec import JobSpec, check_slices, is_gang
from fray_layouts.states import StopOrigin

MAX_HISTORY = 5
"""Past attempts in a job's record. People read them; besides, a restart counts the quick failures among them."""


class JobLease(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The holder of the job's current attempt. `agent` is an agent id, `host` its host name."""

    agent: Id
    host: str
    since: Time


class StopRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A request to end the job. `reason` is for people; `by` is "user", "parent", "expired" or "reservation"."""

    at: Time
    reason: str = ""
    by: str = StopOrigin.USER


class ParentLink(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The parent job and the attempt of it that launched this job; `detached` children outlive their parent."""

    job: Id
    attempt: AttemptNumber
    detached: bool = False


class InboxOrigin(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The dropped file that a job was made from.

    Attributes:
        key: the key under which it was dropped.
        version: the version of it that was read.
        staged_key: on local files, the key that it was renamed to before it was read.
    """

    key: Key
    version: str
    staged_key: Key = ""

    @property
    def current_key(self) -> str:
        """The key at which the file lies until the job is admitted."""
        return self.staged_key or self.key


class ResourceUsage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The resources that a task uses.

    Attributes:
        cpu_seconds: CPU time so far.
        cpu_percent: recent use, in percent of one core.
        memory, memory_peak, disk: bytes.
    """

    cpu_seconds: Number = 0.0
    cpu_percent: Number = 0.0
    memory: Amount = 0
    memory_peak: Amount = 0
    disk: Amount = 0


_USED = [field.name for field in msgspec.structs.fields(ResourceUsage)]


def total_usage(usages: Iterable[ResourceUsage | None]) -> ResourceUsage | None:
    """The sum of the usage of one job's replicas; None if none of them has been measured."""
    known = [usage for usage in usages if usage is not None]
    return ResourceUsage(**{name: sum(getattr(usage, name) for usage in known) for name in _USED}) if known else None


class JobResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The return value of a job: in `value` (JSON), in `data` (base64), or in the object `key` when it is large.

    Attributes:
        encoding: "json", "pickle" (cloudpickle, protocol 5) or "bytes".
        value: the result itself, for "json" that fits the record.
        data: base64 of the bytes, for the other encodings that fit the record.
        key: object that holds the bytes otherwise.
        size: bytes of the encoded result.
    """

    encoding: str
    value: Any = None
    data: str = ""
    key: Key = ""
    size: Count = 0


class AttemptExit(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The end of an attempt.

    Attributes:
        kind: "success", "exited" (code), "signalled" (signal), "out-of-memory", "limit-exceeded" (disk, processes),
            "timeout", "exception" (traceback), "unhealthy", "stopped", "preempted", "yielded" (its parent needed its
            room), "start-failed", "host-failed" (while it ran), "lost" (its agent died), "too-large" (the result, or
            the outputs), "environment-failed" (its packages or image cannot be had).
        message: one line for people.
        code: exit code of the process.
        signal: number of the signal that ended it.
        exception: type name of the exception that a callable raised.
        traceback: text of it; of a command, the stack that Python left on stderr.
        data: base64 of the pickled exception, if it could be pickled.
        usage: totals and peaks over the attempt.
        log_chunks: number of log chunks that were uploaded; followers stop after the last.
    """

    kind: str
    message: str = ""
    code: Amount | None = None
    signal: Amount | None = None
    exception: str = ""
    traceback: str = ""
    data: str = ""
    usage: ResourceUsage | None = None
    log_chunks: Count | None = None


class ReplicaExit(Record, kw_only=True):
    """`work/<job>/<attempt>/exits/<replica>`: the end of one replica of a gang; created once.

    Attributes:
        agent, host: where it ran.
        exit: how it ended.
        result, outputs: what it returned and left, if it succeeded.
    """

    agent: Id
    host: str
    exit: AttemptExit
    ended_at: Time
    result: JobResult | None = None
    outputs: KeptOutputs | None = None

    def check(self) -> None:
        """Raise InvalidInput if its outputs cannot be."""
        if self.outputs is not None:
            self.outputs.check("outputs")


class PastAttempt(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A finished attempt; the record keeps the last `MAX_HISTORY` of them."""

    attempt: AttemptNumber
    agent: str
    host: str
    started_at: Time
    ended_at: Time
    exit: AttemptExit


class JobRecord(Record, kw_only=True):
    """`jobs/<job_id>.json`: the single source of truth about a job: its spec and its mutable state.

    Attributes:
        status: see `fray_coordinator.protocol.transitions`; a job with an unknown status is left alone.
        attempt: number of the current attempt, from 1; only grows. The fence of every commit.
        lease: the holder of the current attempt; for a job that has ended, of the last one.
        stop: set once; a job with it is never requeued or restarted.
        failures, preemptions: attempts counted against the two retry budgets.
        agent_deaths: attempts in a row that ended with their agent's death and no SIGTERM.
        start_failures: attempts in a row that could not be started.
        avoid_hosts: hosts that recently failed to start it; an agent on one of them leaves the job to others for a
            while.
        not_before: earliest time of the next claim.
        forgotten_seconds: run time of the attempts that `history` no longer lists.
        expiring: retention has begun to delete the objects of this job.
        outputs: the kept files: those that the successful attempt left and that the spec's `outputs` match.
        retry_of: the ended job of which this one is a retry; "" for none.
        placement: of a gang, the agents that run its replicas or are to run them; a gang has no lease. None for others.
        driver: the job stands for a program outside of jobs, which holds it. It was created running and has one
            attempt.
        ancestors: the job's parent, the parent's parent and so on, the topmost first, detached or not. Of more than
            `MAX_ANCESTORS`, the topmost and the nearest.
    """

    id: str
    spec: JobSpec
    status: str
    attempt: AttemptNumber = 1
    lease: JobLease | None = None
    stop: StopRequest | None = None
    parent: ParentLink | None = None
    inbox: InboxOrigin | None = None
    failures: Count = 0
    preemptions: Count = 0
    agent_deaths: Count = 0
    start_failures: Count = 0
    avoid_hosts: list[str] = msgspec.field(default_factory=list)
    not_before: Time = 0.0
    submitted_at: Time = 0.0
    started_at: Time | None = None
    ended_at: Time | None = None
    exit: AttemptExit | None = None
    result: JobResult | None = None
    outputs: KeptOutputs | None = None
    history: list[PastAttempt] = msgspec.field(default_factory=list)
    forgotten_seconds: Seconds = 0.0
    expiring: bool = False
    retry_of: MaybeId = ""
    placement: Placement | None = None
    driver: bool = False
    ancestors: Ancestors = msgspec.field(default_factory=list)

    def check(self) -> None:
        """Raise InvalidInput if it is above itself, its attempts or members cannot be, or it waits in a wrong way."""
        if self.parent is not None and self.parent.job == self.id:
            raise InvalidInput("parent.job", self.id, "a job cannot be its own parent; leave it out")
        check_ancestors(self.id, self.ancestors)
        if self.retry_of == self.id:
            raise InvalidInput("retry_of", self.id, "a job cannot be a retry of itself; leave it out")
        for place, past in enumerate(self.history):
            if past.attempt > self.attempt:
                raise InvalidInput(f"history[{place}].attempt", past.attempt, f"attempt {self.attempt} is the last one")
        check_slices("spec.slices", self.spec.slices, self.spec.replicas)
        if self.placement is not None:
            self.placement.check(self.spec.replicas)
        waiting = "gathering" if is_gang(self.spec) else "pending"
        if self.status in ("gathering", "pending") and self.status != waiting:
            raise InvalidInput("status", self.status, f"gangs are gathered, other jobs are claimed; write {waiting}")
        if self.outputs is not None:
            self.outputs.check("outputs")


class Rejection(msgspec.Struct, kw_only=True):
    """`inbox/rejected/<name>.<version>.json`: why a dropped file was not admitted, and its content."""

    key: str
    reason: str
    rejected_at: Time
    content: str
