"""Values that describe jobs and actors: requests, their parts, and what is known of a job.

These are plain values: nothing here opens a cluster. They are checked when a job is submitted (`fray.job_spec`),
because only then is it known what the cluster can honour. Resources are in `fray.resources`.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NewType

from fray.display import Shown, ShownTable
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
class EnvironmentConfig:
    """The environment of a job's processes. A private cluster looks at the variables only.

    Attributes:
        extras: of the project in the workspace, installed with its packages.
        pip_packages: requirements that are installed on top, such as "numpy>=2".
        env_vars: environment variables; they win over the host's own.
        workspace: the folder of code that the job brings and starts in a copy of; "auto": the project of its callable,
            or of the current directory; "": none. None: for a callable whose project is not installed here "auto", for
            others none.
        docker_image: the container image that the job runs in; None: it runs on the host.
        secret_env_vars: variables whose values no command ever shows. They are stored in the job's record.
        secrets: in the constructor, the same as `secret_env_vars`.

    What a job launches has the job's workspace and packages, but for what its environment names.

    Raises:
        InvalidInput: a field that is a list of texts or a mapping was given something else, or both `secrets` and
            `secret_env_vars` are given.
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
        """Make the same config, where None stands for what is not given. Arguments are as the attributes."""
        return cls(extras or (), pip_packages or (), env_vars or {}, workspace, docker_image, secret_env_vars or {})


_TRAINING_DEFAULTS = {"HF_DATASETS_TRUST_REMOTE_CODE": "1", "TOKENIZERS_PARALLELISM": "false"}
_FORWARDED_SECRETS = ("HF_TOKEN", "WANDB_API_KEY")


def create_environment(
    workspace: str | None = None,
    docker_image: str | None = None,
    pip_packages: Sequence[str] | None = None,
    env_vars: Mapping[str, str] | None = None,
    extras: Sequence[str] | None = None,
    secret_env_vars: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> EnvironmentConfig:
    """Make an `EnvironmentConfig` that also has what training programs expect.

    HF_DATASETS_TRUST_REMOTE_CODE is 1, TOKENIZERS_PARALLELISM is false; HF_TOKEN and WANDB_API_KEY are taken from this
    process, as secrets, where they are set. `env_vars` and `secret_env_vars` win over all four.

    Args:
        secrets: the same as `secret_env_vars`. The others are as the attributes of `EnvironmentConfig`.

    Raises:
        InvalidInput: as `EnvironmentConfig`.
    """
    asked = EnvironmentConfig(secret_env_vars=secret_env_vars or {}, secrets=secrets).secret_env_vars
    shown = {**_TRAINING_DEFAULTS, **(env_vars or {})}
    forwarded = {name: os.environ[name] for name in _FORWARDED_SECRETS if name in os.environ and name not in shown}
    return EnvironmentConfig.create(extras, pip_packages, shown, workspace, docker_image, {**forwarded, **asked})


class Entrypoint:
    """What a job runs: a Python call (`from_callable`) or a program (`from_binary`).

        Entrypoint.from_callable(train, args=(config,))
        Entrypoint.from_binary("python", ["train.py", "--steps=100"])

    `Entrypoint(callable=train)` is the same as `Entrypoint.from_callable(train)`.
    """

    def __new__(cls, callable: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Entrypoint:
        return object.__new__(CallableEntrypoint if cls is Entrypoint else cls)

    @property
    def callable_entrypoint(self) -> CallableEntrypoint | None:
        """This entrypoint if it is a Python call, else None."""
        return self if isinstance(self, CallableEntrypoint) else None

    @property
    def binary_entrypoint(self) -> BinaryEntrypoint | None:
        """This entrypoint if it is a program, else None."""
        return self if isinstance(self, BinaryEntrypoint) else None

    @staticmethod
    def from_callable(
        fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> CallableEntrypoint:
        """Make the entrypoint that calls `fn(*args, **kwargs)`; what it returns is the job's result.

        Function and arguments are pickled with cloudpickle when the job is submitted, and unpickled in the job. A
        function of `__main__` or a closure travels by value; one of an installed module is imported there.

        Raises:
            InvalidInput: `fn` cannot be called, or `args` is not a list of values.
        """
        return CallableEntrypoint(fn, _listed(args, "args=(value,)"), dict(kwargs or {}))

    @staticmethod
    def from_binary(command: str, args: Sequence[str] = ()) -> BinaryEntrypoint:
        """Make the entrypoint that starts a program with arguments, without a shell.

        Args:
            command: a path, or a name that is looked up in PATH on the host that runs the job.

        Raises:
            InvalidInput: `args` is not a list of texts.
        """
        return BinaryEntrypoint(command, _listed(args, 'args=["value"]'))


def _listed(args: Iterable[Any], remedy: str) -> tuple[Any, ...]:
    """Arguments as a tuple. Raises InvalidInput for one alone: a text would go letter by letter."""
    if isinstance(args, (str, bytes)) or not isinstance(args, Iterable):
        raise InvalidInput("entrypoint.args", args, f"give a list of them, also of one: {remedy}")
    return tuple(args)


@dataclass(frozen=True)
class CallableEntrypoint(Entrypoint):
    """A Python call, `callable(*args, **kwargs)`; what it returns is the job's result.

    Raises:
        InvalidInput: `callable` cannot be called.
    """

    callable: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not builtins.callable(self.callable):
            remedy = "give the function itself, and its arguments by args=: from_callable(train, args=(3,))"
            raise InvalidInput("entrypoint.callable", self.callable, remedy)


@dataclass(frozen=True)
class BinaryEntrypoint(Entrypoint):
    """A program, `command`, with its arguments `args`, started without a shell."""

    command: str
    args: tuple[str, ...] = ()


def entrypoint_of(given: object) -> object:
    """What a request runs: a plain callable as the entrypoint that calls it, anything else as it is."""
    return CallableEntrypoint(given) if callable(given) and not isinstance(given, Entrypoint) else given


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
        replicas: processes that run as one gang; more than 1 comes in a later release.
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
        same_region: has no effect yet: agents do not know their region. Jobs of one `pool` run where its agents are.
        same_zone: comes in a later release; leave it False.
    """

    name: str
    namespace: str | None = None
    same_region: bool = True
    same_zone: bool = False


class ReservationConfig:
    """Not in this release: making one raises InvalidInput. Launch without a reservation."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise reservations_unsupported("ReservationConfig")


def reservations_unsupported(field: str) -> InvalidInput:
    """The error that says that there are no reservations yet; `field` is what asked for one."""
    return InvalidInput(field, "...", "reservations come in a later release, with gangs; launch without one")


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
        agent, host: which agent runs the current attempt or ran the last, and on which host.
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

    def __repr__(self) -> str:
        """What tells most: a traceback, and what is None or as it always is, is left out."""
        told = {
            "attempt": self.attempt if self.attempt > 1 else None,
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
                "host": self.host,
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
