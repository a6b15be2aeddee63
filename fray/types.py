"""Values that describe jobs and actors: requests, their parts, and what is known of a job.

These are plain values: nothing here opens a cluster. They are checked when a job is submitted (`fray.job_spec`),
because only then is it known what the cluster can honour. Resources are in `fray.resources`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NewType

from fray.display import Shown, ShownTable
from fray.entrypoints import BinaryEntrypoint, CallableEntrypoint, Entrypoint
from fray.environments import EnvironmentConfig, create_environment
from fray.resources import (
    ANY_REGION,
    CpuConfig,
    DeviceConfig,
    DeviceKind,
    GpuConfig,
    GpuType,
    ResourceConfig,
    TpuConfig,
    TpuType,
)
from fray_layouts.topology import TpuTopologyInfo, get_tpu_topology, tpu_family

if TYPE_CHECKING:
    from fray_layouts.records import AttemptExit

__all__ = [
    "ANY_REGION",
    "ActorConfig",
    "BinaryEntrypoint",
    "CallableEntrypoint",
    "CheckpointConfig",
    "CpuConfig",
    "DeviceConfig",
    "DeviceKind",
    "Entrypoint",
    "EnvironmentConfig",
    "GpuConfig",
    "GpuType",
    "HealthCheck",
    "JobGroupConfig",
    "JobId",
    "JobInfo",
    "JobRequest",
    "JobStatus",
    "Namespace",
    "ReservationConfig",
    "ReservationId",
    "ReservationInfo",
    "ResourceConfig",
    "TpuConfig",
    "TpuTopologyInfo",
    "TpuType",
    "create_environment",
    "get_tpu_topology",
    "tpu_family",
]


class JobId(Shown, str):
    """A job's id: its name, a dash and a unique suffix.

    It is text in every way; besides, notebooks show the state that the job has when the id is shown.

    Args:
        text: the id.
        look: reads the job, for notebooks. The ids that `Cluster.launch` returns have it; pickled, they leave it.
    """

    __slots__ = ("_look",)

    _look: Callable[[JobId], JobInfo] | None

    def __new__(cls, text: str, look: Callable[[JobId], JobInfo] | None = None) -> JobId:
        made = super().__new__(cls, text)
        made._look = look
        return made

    def __reduce__(self) -> tuple[type[JobId], tuple[str]]:
        return JobId, (str(self),)

    def _shown(self) -> ShownTable | None:
        return self._look(self)._shown() if self._look is not None else None


Namespace = NewType("Namespace", str)
"""A scope of the names of jobs, actors and queues."""

ReservationId = NewType("ReservationId", str)
"""The id of a reservation."""


class JobStatus(StrEnum):
    """Where a job is in its life.

    PENDING waits for room on an agent; RUNNING has an attempt; SUCCEEDED, FAILED and STOPPED have ended for good.
    """

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    def finished(self) -> bool:
        """Whether the job has ended for good: it succeeded, failed, or was stopped."""
        return self in (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED)


@dataclass(frozen=True)
class HealthCheck:
    """An HTTP check of a running job: it must answer 2xx, or the attempt ends as a failure.

    Attributes:
        port: of the job's server, on the host's loopback address.
        path: what is asked for, with GET.
        interval: seconds between two checks.
        timeout: seconds for one answer.
        grace: seconds after the start in which failed checks do not count.
        failures: failed checks in a row that end the attempt.
    """

    port: int
    path: str = "/"
    interval: float = 10.0
    timeout: float = 5.0
    grace: float = 30.0
    failures: int = 3


@dataclass(frozen=True)
class JobRequest:
    """A job to launch.

    Attributes:
        name: letters, digits, '-', '_' and '.'; the job's id is this name and a unique suffix.
        entrypoint: what to run; a plain callable is called without arguments. It and `resources` may change places.
        resources: what the job needs while it runs; by default one core and 128m of memory.
        environment: variables of its process.
        replicas: processes that run as one gang, each with `resources`: all are started, or none. What one of them
            finds in its environment, and what happens when one ends: `docs/placements.md`.
        spread: each replica is on an agent of its own; by default one agent may run several.
        same: "zone" or "region": all replicas run in one; "" for anywhere.
        max_retries_failure: further attempts after the job's own failures.
        max_retries_preemption: further attempts after its host went away.
        timeout: seconds that one attempt may run; None has no limit.
        pending_timeout: seconds that the job may wait to be started before it is stopped; None has no limit.
        grace: seconds between SIGTERM and SIGKILL when it is stopped or preempted.
        priority: from -500 to 499; higher is started first.
        namespace: scope of the names of jobs and actors; by default that of the cluster object that launches it.
        parent: id of the job whose end ends this one; by default the job that launches it.
        detached: the job outlives the one that launches it.
        pool: name of the group of agents that may run it.
        id: makes launching idempotent: the same name and id find the job that was launched first.
        health_check: an HTTP check of the running job.
        actor: the job serves calls: two attempts of it never overlap, and a crash restarts it on its host.
        ports: names of ports that it has for itself on its host; "http" is in FRAY_PORT_HTTP.
        outputs: patterns of the files that are kept when the job succeeds, by their paths from where it starts, such as
            "checkpoints/**"; `Cluster.pull` fetches them.
        max_task_failures, processes_per_task: come in a later release; leave them at their defaults.
    """

    name: str
    entrypoint: Entrypoint | Callable[[], Any]
    resources: ResourceConfig = field(default_factory=ResourceConfig)
    environment: EnvironmentConfig | None = None
    replicas: int = 1
    max_retries_failure: int = 0
    max_retries_preemption: int = 100
    timeout: float | None = None
    pending_timeout: float | None = None
    grace: float = 10.0
    priority: int = 0
    namespace: str | None = None
    parent: str | None = None
    detached: bool = False
    pool: str = "default"
    id: str | None = None
    health_check: HealthCheck | None = None
    actor: bool = False
    ports: Sequence[str] = ()
    outputs: Sequence[str] = ()
    spread: bool = False
    same: str = ""
    max_task_failures: int = 0
    processes_per_task: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.entrypoint, ResourceConfig):
            vars(self).update(entrypoint=self.resources, resources=self.entrypoint)


@dataclass(frozen=True)
class CheckpointConfig:
    """When a durable actor's state is written to the storage; give at least one of the three.

    The actor's class defines `__checkpoint__()` and `__restore__(state)`, or `__getstate__()` and
    `__setstate__(state)`; the state that the first returns is pickled. A restarted actor goes on from its last
    checkpoint.

    Attributes:
        calls: after so many calls, again and again.
        seconds: after so many seconds, if there was a call since.
        replies: before each reply, so that no call that was answered is lost; each call then waits for a write.
    """

    calls: int | None = None
    seconds: float | None = None
    replies: bool = False


@dataclass(frozen=True)
class ActorConfig:
    """How an actor is run, and what its callers do when it dies.

    Attributes:
        max_concurrency: calls that run at once, in threads. With 1 the calls of one caller run in the order in which
            they were made.
        max_restarts: restarts after its process crashed, and as many after its host went away; None has no limit. An
            exception from `__init__` ends the actor whatever this says.
        max_task_retries: times that a call is repeated although it may have begun in a process that then died; -1 has
            no limit, None is 0. A call that did not begin is always repeated.
        priority: of its job, as in `JobRequest`.
        checkpoint: when its state is stored, which makes the actor durable; None keeps the state in memory only.
        detached: the actor outlives the job or the program that creates it.
    """

    max_concurrency: int = 1
    max_restarts: int | None = None
    max_task_retries: int | None = None
    priority: int = 0
    checkpoint: CheckpointConfig | None = None
    detached: bool = False


@dataclass(frozen=True)
class JobGroupConfig:
    """Jobs that are launched together, by `Cluster.launch_group`.

    Attributes:
        name: letters, digits, '-', '_' and '.'.
        namespace: the namespace of all its jobs; None is that of the cluster object.
        same_region: all run in one region, as far as agents tell theirs (`fray agent --region`).
        same_zone: all run in one zone (`fray agent --zone`).
    """

    name: str
    namespace: str | None = None
    same_region: bool = True
    same_zone: bool = False


@dataclass(frozen=True)
class ReservationConfig:
    """Hosts that are held for the jobs of a namespace, by `Cluster.create_reservation`.

    Attributes:
        min_resources: what has to be there before any job starts in it, all at once; its `replicas` say how many hosts
            or parts of hosts.
        max_resources: the same with more replicas: it grows up to them as there is room. None: as many as at least.
        priority: from -500 to 499; higher is given room first.
        ttl_seconds: seconds until it ends, and from a renewal on; at least 10.
        preemptible: False takes only hosts that are not taken away.
        pool: whose agents it takes.
    """

    min_resources: ResourceConfig
    max_resources: ResourceConfig | None = None
    priority: int = 0
    ttl_seconds: float = 3600
    preemptible: bool = True
    pool: str = "default"


@dataclass(frozen=True)
class ReservationInfo:
    """A reservation as it was when its record was read. The `replicas` of its resources count slices of TPUs.

    Attributes:
        reservation_id: as `Cluster.create_reservation` returned it.
        allocated_resources: what it has; 0 replicas until all that it needs at least was there at once.
        pending_resources: what it lacks of its maximum; 0 replicas once it has ended.
        jobs: that wait or run in it, in order of submission.
        expires_at: when it ends unless it is renewed: seconds since the epoch, on the storage's clock.
        state: "forming" until it has its minimum, then "held", then "ended".
        reason: why it ended; "" if it has not.
    """

    reservation_id: ReservationId
    allocated_resources: ResourceConfig
    pending_resources: ResourceConfig
    jobs: list[JobId]
    expires_at: float
    state: str = "forming"
    reason: str = ""


@dataclass(frozen=True, repr=False)
class JobInfo(Shown):
    """A job as it was when its record was read. Times are seconds since the epoch, on the storage's clock.

    Attributes:
        job_id: its name and a unique suffix.
        status: a status that this version does not know counts as RUNNING: the job has not ended.
        error_message: one line that says why it did not succeed; None if it did, or has not ended.
        start_time, end_time, submit_time: None for what has not happened.
        exit: how the last attempt ended: code, signal, traceback, usage; None if none has.
        attempt: number of the current or last attempt, from 1.
        agent, host: which agent runs the current attempt or ran the last, and on which host; of a gang, its replica 0.
        replicas: processes that run as one gang; 1 for a job that is none.
        hosts: of a gang, the host of each replica, by its number; () while it has none.
        parent: id of the job whose end ends this one.
        failures, preemptions: attempts spent from either budget of retries.
        log_url: prefix of the current or last attempt's log chunks in the storage.
    """

    job_id: JobId
    name: str
    status: JobStatus
    error_message: str | None = None
    start_time: float | None = None
    end_time: float | None = None
    namespace: Namespace = Namespace("")
    exit: AttemptExit | None = None
    attempt: int = 1
    agent: str | None = None
    host: str | None = None
    parent: JobId | None = None
    failures: int = 0
    preemptions: int = 0
    submit_time: float | None = None
    log_url: str = ""
    replicas: int = 1
    hosts: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """What tells most: a traceback, and what is None or as it always is, is left out."""
        told = {
            "attempt": self.attempt if self.attempt > 1 else None,
            "replicas": self.replicas if self.replicas > 1 else None,
            "host": self.host,
            "error_message": self.error_message,
        }
        rest = "".join(f", {name}={value!r}" for name, value in told.items() if value is not None)
        return f"JobInfo({str(self.job_id)!r}, {self.status.name}{rest})"

    def _shown(self) -> ShownTable:
        return ShownTable.of(
            f"job {self.job_id}",
            {
                "status": self.status.value,
                "attempt": self.attempt if self.start_time is not None else None,
                "replicas": self.replicas if self.replicas > 1 else None,
                "host": ", ".join(dict.fromkeys(self.hosts)) or self.host,
                "submitted": _utc(self.submit_time),
                "waited": _seconds_between(self.submit_time, self.start_time),
                "ran": _seconds_between(self.start_time, self.end_time),
                "reason": self.error_message,
            },
        )


def _utc(seconds: float | None) -> str | None:
    return None if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _seconds_between(begin: float | None, end: float | None) -> str | None:
    return None if begin is None or end is None else f"{max(end - begin, 0.0):.1f} s"
