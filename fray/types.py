"""What users describe jobs with, and what they are told about them.

These are plain values: nothing here opens a cluster. They are checked when a job is submitted (`fray.job_spec`),
because only then is it known what the cluster can honour. Resources are in `fray.resources`.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NewType

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
from fray.topology import TpuTopologyInfo, get_tpu_topology, tpu_family
from fray_layouts.errors import InvalidInput

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
    "ResourceConfig",
    "TpuConfig",
    "TpuTopologyInfo",
    "TpuType",
    "create_environment",
    "get_tpu_topology",
    "tpu_family",
]

JobId = NewType("JobId", str)
Namespace = NewType("Namespace", str)


class JobStatus(StrEnum):
    """Where a job is in its life."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    def finished(self) -> bool:
        """Whether the job has ended for good."""
        return self in (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED)


@dataclass(frozen=True)
class EnvironmentConfig:
    """The environment of a job's processes.

    Attributes:
        extras, pip_packages, workspace, docker_image: a later release.
        env_vars: variables; they win over the host's own.
        secret_env_vars: variables whose values no command ever shows.
        secrets: when it is made, the same as `secret_env_vars`.

    Raises:
        InvalidInput: what should be a list of texts or a mapping is none, or `secrets` is given twice.
    """

    extras: Sequence[str] = ()
    pip_packages: Sequence[str] = ()
    env_vars: Mapping[str, str] = field(default_factory=dict)
    workspace: str | None = None
    docker_image: str | None = None
    secret_env_vars: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: InitVar[Mapping[str, str] | None] = None

    def __post_init__(self, secrets: Mapping[str, str] | None) -> None:
        if secrets and self.secret_env_vars:
            raise InvalidInput("environment.secrets", "...", "it is the same as secret_env_vars; give one of them")
        if secrets:
            vars(self).update(secret_env_vars=secrets)
        for name in ("extras", "pip_packages"):
            if isinstance(getattr(self, name), (str, Mapping)):
                raise InvalidInput(f"environment.{name}", "...", "give a list of texts; variables are env_vars=")
        for name in ("env_vars", "secret_env_vars"):
            if not isinstance(getattr(self, name), Mapping):
                raise InvalidInput(f"environment.{name}", "...", "give a dict of variables and their values")

    @classmethod
    def create(
        cls,
        extras: Sequence[str] | None = None,
        pip_packages: Sequence[str] | None = None,
        env_vars: Mapping[str, str] | None = None,
        workspace: str | None = None,
        docker_image: str | None = None,
        secret_env_vars: Mapping[str, str] | None = None,
    ) -> EnvironmentConfig:
        """The same with None for what is not wanted."""
        return cls(extras or (), pip_packages or (), env_vars or {}, workspace, docker_image, secret_env_vars or {})


_EXPECTED = {"HF_DATASETS_TRUST_REMOTE_CODE": "1", "TOKENIZERS_PARALLELISM": "false"}
_FORWARDED = ("HF_TOKEN", "WANDB_API_KEY")


def create_environment(
    workspace: str | None = None,
    docker_image: str | None = None,
    pip_packages: Sequence[str] | None = None,
    env_vars: Mapping[str, str] | None = None,
    extras: Sequence[str] | None = None,
    secret_env_vars: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> EnvironmentConfig:
    """`EnvironmentConfig.create` with what training programs expect to find.

    HF_DATASETS_TRUST_REMOTE_CODE and TOKENIZERS_PARALLELISM are set, HF_TOKEN and WANDB_API_KEY are taken from this
    process, as secrets; `env_vars` and `secret_env_vars`, or `secrets`, which are the same thing, win over all of them.
    """
    asked = EnvironmentConfig(secret_env_vars=secret_env_vars or {}, secrets=secrets).secret_env_vars
    shown = {**_EXPECTED, **(env_vars or {})}
    forwarded = {name: os.environ[name] for name in _FORWARDED if name in os.environ and name not in shown}
    return EnvironmentConfig.create(extras, pip_packages, shown, workspace, docker_image, {**forwarded, **asked})


class Entrypoint:
    """What a job runs; made by `from_callable` or `from_binary`. `Entrypoint(callable=fn)` is as `from_callable`."""

    def __new__(cls, callable: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Entrypoint:
        return object.__new__(CallableEntrypoint if cls is Entrypoint else cls)

    @property
    def callable_entrypoint(self) -> CallableEntrypoint | None:
        """Itself, if it is a Python call."""
        return self if isinstance(self, CallableEntrypoint) else None

    @property
    def binary_entrypoint(self) -> BinaryEntrypoint | None:
        """Itself, if it is a program."""
        return self if isinstance(self, BinaryEntrypoint) else None

    @staticmethod
    def from_callable(
        fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> CallableEntrypoint:
        """A Python call. Function and arguments are pickled (cloudpickle) when the job is submitted."""
        return CallableEntrypoint(fn, tuple(args), dict(kwargs or {}))

    @staticmethod
    def from_binary(command: str, args: Sequence[str] = ()) -> BinaryEntrypoint:
        """A program and its arguments, without a shell."""
        return BinaryEntrypoint(command, tuple(args))


@dataclass(frozen=True)
class CallableEntrypoint(Entrypoint):
    """`callable(*args, **kwargs)`; what it returns is the job's result."""

    callable: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not builtins.callable(self.callable):
            raise InvalidInput("entrypoint.callable", self.callable, "give a function, or anything that can be called")


@dataclass(frozen=True)
class BinaryEntrypoint(Entrypoint):
    """`command` with `args`."""

    command: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class HealthCheck:
    """An HTTP route of the task that must answer 2xx, or the attempt ends as a failure. Times in seconds."""

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
        replicas: processes that run as one gang.
        max_retries_failure: further attempts after the job's own failures.
        max_retries_preemption: further attempts after its host went away.
        timeout: seconds one attempt may run.
        pending_timeout: seconds the job may wait to be started before it is stopped.
        grace: seconds between SIGTERM and SIGKILL when it is stopped or preempted.
        priority: from -500 to 499; higher goes first.
        namespace: scope of actor names; by default that of the cluster object that launches it.
        parent: job whose end ends this one; by default the job that launches it.
        detached: the job outlives the one that launches it.
        pool: group of agents that may run it.
        id: makes launching idempotent: the same name and id find the job that was launched first.
        actor: the job serves calls: two attempts of it never overlap, and a crash restarts it on its host.
        max_task_failures, processes_per_task: a later release.
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
    max_task_failures: int = 0
    processes_per_task: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.entrypoint, ResourceConfig):
            vars(self).update(entrypoint=self.resources, resources=self.entrypoint)


@dataclass(frozen=True)
class CheckpointConfig:
    """When a durable actor's state is written down; at least one of the three.

    Such an actor defines `__checkpoint__()` and `__restore__(state)`, or `__getstate__()` and `__setstate__(state)`;
    what the first returns is pickled. A restarted actor goes on from its last checkpoint.

    Attributes:
        calls: after every so many calls.
        seconds: after so many seconds, if anything was called since.
        replies: before each reply: a call that was answered is never lost.
    """

    calls: int | None = None
    seconds: float | None = None
    replies: bool = False


@dataclass(frozen=True)
class ActorConfig:
    """How an actor is run, and what its callers do when it dies.

    Attributes:
        max_concurrency: calls that run at once. With 1 the calls of one caller run in the order they were made.
        max_restarts: restarts after its process crashed or its host went away, each counted by itself; None: without
            limit. An exception from `__init__` ends the actor whatever this says.
        max_task_retries: times that a call is made again although it may have begun in a process that then died; -1:
            without limit. A call that did not begin is always made again.
        priority: of its job, as in `JobRequest`.
        checkpoint: makes the actor durable.
        detached: it outlives the job, or the program outside of jobs, that creates it.
    """

    max_concurrency: int = 1
    max_restarts: int | None = None
    max_task_retries: int | None = None
    priority: int = 0
    checkpoint: CheckpointConfig | None = None
    detached: bool = False


@dataclass(frozen=True)
class JobGroupConfig:
    """Jobs that are launched together.

    Attributes:
        name: letters, digits, '-', '_' and '.'.
        namespace: of all its jobs; by default that of the cluster object.
        same_region: agents do not know their region yet; jobs of one `pool` run where that pool's agents are.
        same_zone: a later release.
    """

    name: str
    namespace: str | None = None
    same_region: bool = True
    same_zone: bool = False


class ReservationConfig:
    """Reservations come in a later release: making one raises InvalidInput."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise reservations_unsupported("ReservationConfig")


def reservations_unsupported(field: str) -> InvalidInput:
    """The error of who asks for one."""
    return InvalidInput(field, "...", "reservations come in a later release, with gangs; launch without one")


@dataclass(frozen=True)
class JobInfo:
    """A job as it was when it was asked for. Times are seconds since the epoch on the storage's clock.

    Attributes:
        status: a status that this version does not know counts as RUNNING: the job has not ended.
        error_message: why it did not succeed, one line.
        exit: how the last attempt ended in full: code, signal, traceback, usage.
        attempt: number of the current or last attempt, from 1.
        agent, host: who runs the current attempt, or ran the last.
        failures, preemptions: attempts spent from either budget.
        log_url: prefix of the current or last attempt's log chunks.
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
