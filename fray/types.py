"""The classes that describe jobs and actors: requests, their parts, and the state of a job.

They are plain values: nothing here opens a cluster. Requests are checked when a job is submitted (`fray.job_spec`),
because only then is it known what the cluster supports. Resources are in `fray.resources`. What is in seconds may also
be text, such as "10m" or "1h30m".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NewType

from fray.call_forms import says_form
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
from fray_layouts.units import format_duration

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

    It is a str in every way. In addition, notebooks show the job's current state when they show the id.

    Args:
        text: the id.
        read: a function that reads the job, for notebooks. The ids that `Cluster.launch` returns have it; pickling
            drops it.
    """

    __slots__ = ("_read",)

    _read: Callable[[JobId], JobInfo] | None

    def __new__(cls, text: str, read: Callable[[JobId], JobInfo] | None = None) -> JobId:
        made = super().__new__(cls, text)
        made._read = read
        return made

    def __reduce__(self) -> tuple[type[JobId], tuple[str]]:
        return JobId, (str(self),)

    def _shown(self) -> ShownTable | None:
        return self._read(self)._shown() if self._read is not None else None


Duration = float | str
"""Seconds, or text such as "45s", "10m", "1h30m"."""

Namespace = NewType("Namespace", str)
"""A scope of names of jobs, actors and queues."""

ReservationId = NewType("ReservationId", str)
"""The id of a reservation."""


class JobStatus(StrEnum):
    """The status of a job.

    A PENDING job waits for room on an agent. A RUNNING job has an attempt. SUCCEEDED, FAILED and STOPPED jobs have
    ended for good.
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
    """An HTTP check of a running job. If the job does not answer 2xx, the attempt ends as a failure.

    Attributes:
        port: port of the job's server, on the host's loopback address.
        path: path of the GET request.
        interval: seconds between two checks.
        timeout: seconds for one answer.
        grace: seconds after the start in which failed checks do not count.
        failures: number of failed checks in a row that ends the attempt.
    """

    port: int
    path: str = "/"
    interval: Duration = 10.0
    timeout: Duration = 5.0
    grace: Duration = 30.0
    failures: int = 3


_ELSEWHERE = {
    **dict.fromkeys(("gpus", "gpu", "num_gpus"), 'it is resources=ResourceConfig.with_gpu("h100", count=8)'),
    **dict.fromkeys(("tpu", "tpus", "tpu_type"), 'it is resources=ResourceConfig.with_tpu("v5litepod-16")'),
    **dict.fromkeys(("cpus", "num_cpus"), "it is resources=ResourceConfig(cpu=...)"),
    **dict.fromkeys(
        ("args", "kwargs"), "it is entrypoint=Entrypoint.from_callable(function, args=(...), kwargs={...})"
    ),
    **dict.fromkeys(("fn", "function", "target"), "it is entrypoint=function"),
    **dict.fromkeys(("command", "cmd"), "it is entrypoint=Entrypoint.from_binary(program, [...])"),
    **dict.fromkeys(("env", "runtime_env"), "it is environment=EnvironmentConfig(env_vars={...})"),
    "image": "it is environment=EnvironmentConfig(docker_image=...)",
    **dict.fromkeys(("retries", "max_retries"), "it is max_retries_failure"),
}
"""Arguments that other systems have, and what they are in a `JobRequest`."""


@says_form(
    'JobRequest("name", Entrypoint.from_callable(function, args=(...)), ResourceConfig(cpu=2))',
    _ELSEWHERE,
    {"resources": ResourceConfig, "environment": EnvironmentConfig},
)
@dataclass(frozen=True)
class JobRequest:
    """A request to launch a job.

    Attributes:
        name: letters, digits, '-', '_' and '.'; the job's id is this name and a unique suffix.
        entrypoint: what to run; a plain callable is called without arguments. It and `resources` may be swapped.
        resources: what the job needs while it runs; by default one core and 128m of memory.
        environment: variables, code and packages of its process.
        replicas: number of processes that run as one gang, each with `resources`; either all are started, or none.
            `docs/placements.md` says what a replica finds in its environment, and what happens when one ends.
        spread: True puts each replica on another agent; by default one agent may run several.
        same: "zone" or "region": all replicas run in the same one; "" for anywhere.
        max_retries_failure: further attempts after the job's own failures.
        max_retries_preemption: further attempts after its host went away.
        timeout: seconds that one attempt may run; None for no limit.
        pending_timeout: seconds that the job may wait to be started before it is stopped; None for no limit.
        grace: seconds between SIGTERM and SIGKILL when it is stopped or preempted.
        priority: from -500 to 499; jobs with a higher priority are started first.
        namespace: scope of names of the job and its actors; by default that of the cluster object that launches it.
        parent: id of the job whose end ends this one; by default the job that launches it.
        detached: whether the job outlives the job that launches it.
        pool: name of the pool of agents that may run it.
        id: makes the launch idempotent: a second launch with the same name and id finds the first job.
        health_check: an HTTP check of the running job.
        actor: whether the job serves calls. After a crash it is restarted on its host.
        outage: what its processes do while the storage does not answer. "run": they go on for `outage_grace` (900 s);
            if only their host is cut off, the next attempt may run beside them for that time. "stop": they are killed
            once no heartbeat was written for 15 s, so that two attempts never run at once. "": "stop" for actors and
            for gangs, which cannot choose, and otherwise "run".
        ports: names of ports that are reserved for it on its host; the number of "http" is in FRAY_PORT_HTTP.
        outputs: patterns of files that are kept when the job succeeds, relative to the directory in which it starts,
            such as "checkpoints/**". `Cluster.pull` downloads them.
        log_limit: bytes, or text such as "10GB", of output that are kept of one attempt of each replica; of more, the
            first and the last half of this are kept.
        max_task_failures, processes_per_task: not supported in this release; leave them at their defaults.
    """

    name: str
    entrypoint: Entrypoint | Callable[[], Any]
    resources: ResourceConfig = field(default_factory=ResourceConfig)
    environment: EnvironmentConfig | None = None
    replicas: int = 1
    max_retries_failure: int = 0
    max_retries_preemption: int = 100
    timeout: Duration | None = None
    pending_timeout: Duration | None = None
    grace: Duration = 10.0
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
    log_limit: int | str = 10**9
    spread: bool = False
    same: str = ""
    outage: str = ""
    max_task_failures: int = 0
    processes_per_task: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.entrypoint, ResourceConfig):
            vars(self).update(entrypoint=self.resources, resources=self.entrypoint)


@dataclass(frozen=True)
class CheckpointConfig:
    """When a durable actor's state is written to the storage. Give at least one of the three.

    The actor's class defines `__checkpoint__()` and `__restore__(state)`, or `__getstate__()` and
    `__setstate__(state)`; the state that the first method returns is pickled. A restarted actor continues from its last
    checkpoint.

    Attributes:
        calls: write after every so many calls.
        seconds: write after so many seconds if there was a call since the last checkpoint.
        replies: write before each reply, so that no answered call is lost; each call then waits for a write.
    """

    calls: int | None = None
    seconds: float | None = None
    replies: bool = False


@dataclass(frozen=True)
class ActorConfig:
    """How an actor is run, and which calls are retried when it dies.

    Attributes:
        max_concurrency: number of calls that run at once, in threads. With 1 the calls of one caller run in the order
            in which they were made.
        max_restarts: restarts after its process crashed, and as many after its host went away; None for no limit. An
            exception from `__init__` always ends the actor.
        max_task_retries: how often a call is made again that may have begun in a process that then died; -1 for no
            limit, None is 0. A call that has not begun is always made again.
        priority: priority of its job, as in `JobRequest`.
        checkpoint: when its state is stored, which makes the actor durable; None keeps the state in memory only.
        detached: whether the actor outlives the job or the program that creates it.
        outage: what it does while the storage does not answer. "stop": it is killed once its host's agent has written
            no heartbeat for 15 s, so that callers never find two of it. "run": it serves on for `outage_grace` (900 s);
            if only its host is cut off, a second one is started meanwhile. Callers that are connected to the first one
            call that until it ends; what they did there is then lost, as in a crash.
    """

    max_concurrency: int = 1
    max_restarts: int | None = None
    max_task_retries: int | None = None
    priority: int = 0
    checkpoint: CheckpointConfig | None = None
    detached: bool = False
    outage: str = "stop"


@dataclass(frozen=True)
class JobGroupConfig:
    """The settings of a group of jobs that `Cluster.launch_group` launches together.

    Attributes:
        name: letters, digits, '-', '_' and '.'.
        namespace: the namespace of all its jobs; None for that of the cluster object.
        same_region: whether all run in one region, as far as agents state theirs (`fray agent --region`).
        same_zone: whether all run in one zone (`fray agent --zone`).
    """

    name: str
    namespace: str | None = None
    same_region: bool = True
    same_zone: bool = False


@dataclass(frozen=True)
class ReservationConfig:
    """A request to hold hosts for the jobs of a namespace, for `Cluster.create_reservation`.

    Attributes:
        min_resources: what has to be available at once before any job starts in the reservation; its `replicas` are the
            number of hosts or parts of hosts.
        max_resources: the same with more replicas, up to which the reservation grows as there is room. None: it does
            not grow.
        priority: from -500 to 499; reservations with a higher priority get room first.
        ttl_seconds: seconds until it ends, counted from its creation or last renewal; at least 10.
        preemptible: False takes only hosts that the cloud does not take away.
        pool: the pool whose agents it takes.
    """

    min_resources: ResourceConfig
    max_resources: ResourceConfig | None = None
    priority: int = 0
    ttl_seconds: Duration = 3600
    preemptible: bool = True
    pool: str = "default"


@dataclass(frozen=True)
class ReservationInfo:
    """The state of a reservation when its record was read. For TPUs, the `replicas` of its resources count slices.

    Attributes:
        reservation_id: the id that `Cluster.create_reservation` returned.
        allocated_resources: what it has; 0 replicas until its minimum was available at once.
        pending_resources: what it lacks of its maximum; 0 replicas once it has ended.
        jobs: the jobs that wait or run in it, in order of submission.
        expires_at: when it ends unless it is renewed, in seconds since the epoch on the storage's clock.
        state: "forming" until it has its minimum, then "held", then "ended".
        reason: why it ended; "" if it has not ended.
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
    """The state of a job when its record was read. Times are seconds since the epoch, on the storage's clock.

    Attributes:
        job_id: the job's id: its name and a unique suffix.
        status: the job's status. A status that this version does not know counts as RUNNING.
        error_message: one line that says why it did not succeed; None if it succeeded or has not ended.
        start_time, end_time, submit_time: None if it has not happened yet.
        exit: how the last attempt ended (code, signal, traceback, usage); None if no attempt has ended.
        attempt: number of the current or last attempt, from 1.
        agent, host: the agent and host of the current or last attempt; for a gang, those of its replica 0.
        replicas: number of processes that run as one gang; 1 for a job that is not a gang.
        hosts: for a gang, the host of each replica in the order of their numbers; () while it has none.
        parent: id of the job whose end ends this one.
        failures, preemptions: number of attempts used from each retry budget.
        log_url: URL prefix of the current or last attempt's log chunks in the storage.
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
        """The id, the status and the most important fields that differ from their defaults."""
        facts = {
            "attempt": self.attempt if self.attempt > 1 else None,
            "replicas": self.replicas if self.replicas > 1 else None,
            "host": self.host,
            "error_message": self.error_message,
        }
        rest = "".join(f", {name}={value!r}" for name, value in facts.items() if value is not None)
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
                "waited": _duration(self.submit_time, self.start_time),
                "ran": _duration(self.start_time, self.end_time),
                "reason": self.error_message,
            },
        )


def _utc(seconds: float | None) -> str | None:
    return None if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _duration(begin: float | None, end: float | None) -> str | None:
    return None if begin is None or end is None else format_duration(end - begin)
