"""The spec of a job: what it runs, with which resources, in which environment, and how often it is tried.

Where a field is in seconds or bytes, people may write text with a unit, such as "10m" or "2GB"; records hold numbers.
`fray_layouts.spec_parsing` makes a spec from what a person wrote.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from fray_layouts.bounds import (
    IN_BYTES,
    MAX_CALLABLE_NAME,
    MAX_IMAGE,
    MAX_NAME,
    MAX_VARIANT,
    MAYBE_NAME_PATTERN,
    MAYBE_PYTHON_PATTERN,
    NAME_PATTERN,
    OUTAGE_PATTERN,
    SAME_PATTERN,
    Attempts,
    Bytes,
    Count,
    Interval,
    Key,
    MaybeJobId,
    MaybeName,
    Name,
    Pool,
    Priority,
    Seconds,
    User,
)
from fray_layouts.errors import InvalidInput

MAX_INLINE_BYTES = 64 * 1024
"""Bytes of a callable or a result that a job's record may hold. Larger ones are separate objects: records are read
often."""


SMALLEST_LOG, LARGEST_LOG = 10**7, 10**13
"""Bounds of `JobSpec.log_limit` in bytes: of some dozen chunks, and of as many as chunk numbers have digits for."""


class SpecPart(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Base of the parts of a spec."""


class CallableSpec(SpecPart, kw_only=True):
    """A pickled Python call.

    Attributes:
        pickle: base64 of cloudpickle of (function, args, kwargs), or
        blob: the key of the object that holds the pickle.
        name: name of the callable, for people: "trainer.train".
        python: minor version of the interpreter that pickled it, as "3.11"; code objects load in no other version. "":
            unknown.
    """

    pickle: str = ""
    blob: Key = ""
    name: Annotated[str, Meta(max_length=MAX_CALLABLE_NAME)] = ""
    python: Annotated[str, Meta(pattern=MAYBE_PYTHON_PATTERN)] = ""


class EntrypointSpec(SpecPart, kw_only=True):
    """The code to run: either a command (program and arguments, no shell) or a callable.

    stdin: key of the object that each attempt of a command reads as its standard input; "" gives it an empty one.
    """

    command: list[str] = []
    stdin: Key = ""
    callable: CallableSpec | None = None


class DeviceSpec(SpecPart, kw_only=True):
    """An accelerator. kind: "cpu", "gpu" or "tpu"; variant: "h100", "v5litepod-16" ...

    count: devices per replica; a part of one GPU, such as 0.5, leaves the rest to other jobs.
    """

    kind: Annotated[str, Meta(pattern=NAME_PATTERN, max_length=16)] = "cpu"
    variant: Annotated[str, Meta(pattern=MAYBE_NAME_PATTERN, max_length=MAX_VARIANT)] = ""
    count: Annotated[int, Meta(ge=1, le=10**6)] | Annotated[float, Meta(gt=0, lt=1)] = 1


DEFAULT_POOL = "default"
"""The pool of jobs and agents that name none."""

UNASKED_MEMORY, UNASKED_DISK = 128 * 10**6, 10**9
"""Bytes that are reserved for jobs whose submitter gave no size. `ResourceConfig` has always had these defaults, so a
task that uses more than 128 MB must not be killed for it unless somebody asked for a limit."""


class ResourceSpec(SpecPart, kw_only=True):
    """The resources that one replica needs while it runs.

    Attributes:
        cpu: cores; fractions to a thousandth. While cores are scarce, this is the task's share of them.
        hard_cpu: limit the task to `cpu` cores, even while other cores are idle.
        memory: bytes that are reserved, and that the task may use; `ram` is another name of it. 0 and
            `UNASKED_MEMORY` set no limit.
        disk: bytes of scratch space. 0 and `UNASKED_DISK` set no limit.
        preemptible: false keeps the job off hosts that may be taken away.
        device_alternatives: other acceptable variants of the same kind of device, in order of preference.
        regions: the host must be in one of them; an empty list allows any region.
        zone: the zone that the host must be in; "" for any.
        labels: labels that the host's agent must have.
    """

    cpu: Annotated[float, Meta(ge=0, le=100_000)] = 1.0
    hard_cpu: bool = False
    memory: Bytes = 0
    disk: Bytes = 0
    device: DeviceSpec | None = None
    preemptible: bool = True
    device_alternatives: list[Annotated[str, Meta(pattern=NAME_PATTERN, max_length=MAX_VARIANT)]] = []
    regions: list[Name] = []
    zone: MaybeName = ""
    labels: dict[str, str] = {}

    @property
    def memory_limit(self) -> int:
        """Bytes of memory that the task may use; 0 if there is no limit."""
        return 0 if self.memory == UNASKED_MEMORY else self.memory

    @property
    def disk_limit(self) -> int:
        """Bytes that the task's working directory may have; 0 if there is no limit."""
        return 0 if self.disk == UNASKED_DISK else self.disk


class WorkspaceSpec(SpecPart, kw_only=True):
    """A folder of code that travels with the job, as one archive (`docs/environments.md` has its format).

    Attributes:
        blob: key of the archive.
        size, files: bytes and entries of the archive, for people.
        dependencies: name of the file at its top that states the packages: "uv.lock", "requirements.txt",
            "pyproject.toml"; "" if there is none.
        folder: the folder in it where the job starts; "" for its top.
    """

    blob: Key
    size: Count = 0
    files: Count = 0
    dependencies: str = ""
    folder: str = ""


class EnvironmentSpec(SpecPart, kw_only=True):
    """The environment of the job's processes: variables, code, packages, image.

    Attributes:
        env_vars: variables; they override the agent's own.
        secret_env_vars: variables whose values no command ever shows.
        workspace: code that the job brings; each attempt starts in its own copy.
        extras: extras of the workspace's project that are installed with its packages.
        groups: dependency groups of its pyproject.toml that are installed too, such as "dev".
        pip_packages: requirements that are installed on top.
        python: the acceptable versions of Python, as a PEP 440 specifier such as ">=3.11"; "" for any.
        docker_image: the container image that the job runs in; "" runs it on the host.
    """

    env_vars: dict[str, str] = {}
    secret_env_vars: dict[str, str] = {}
    workspace: WorkspaceSpec | None = None
    extras: list[str] = []
    groups: list[str] = []
    pip_packages: list[str] = []
    python: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    docker_image: Annotated[str, Meta(max_length=MAX_IMAGE)] = ""


def needs_environment(environment: EnvironmentSpec) -> bool:
    """Whether the job needs packages that its agent must install."""
    stated = environment.workspace is not None and bool(environment.workspace.dependencies)
    return stated or bool(environment.extras or environment.groups or environment.pip_packages)


def blobs_of(spec: JobSpec) -> list[str]:
    """Keys of the blobs that the job needs to run."""
    call, workspace = spec.entrypoint.callable, spec.environment.workspace
    blobs = (call.blob if call is not None else "", workspace.blob if workspace is not None else "")
    named = (*blobs, spec.entrypoint.stdin)
    return [key for key in named if key]


class HealthCheckSpec(SpecPart, kw_only=True):
    """An HTTP route on the task's host that must answer 2xx.

    Attributes:
        path, port: the route; the agent asks on the loopback address.
        interval: seconds between requests.
        timeout: seconds to wait for one answer.
        grace: seconds after the start in which failures do not count.
        failures: failures in a row after which the attempt is ended as a failure.
    """

    path: Annotated[str, Meta(pattern="^/")] = "/"
    port: Annotated[int, Meta(ge=1, le=65535)]
    interval: Interval = 10.0
    timeout: Interval = 5.0
    grace: Seconds = 30.0
    failures: Annotated[int, Meta(ge=1, le=10**6)] = 3


class GangSpec(SpecPart, kw_only=True):
    """Equal bundles of resources that one owner gets all at once, or not at all.

    Attributes:
        resources: of one bundle.
        count: number of bundles.
        slices: number of whole TPU slices that the bundles form, one bundle per host; 0 if they are not slices.
        spread: whether each bundle is on a different agent.
        same: "zone" or "region": all are in the same one; "" for anywhere.
        actor, packages, image: what the jobs in them need from a host besides resources, as in the keys of index
            entries.
    """

    resources: ResourceSpec = msgspec.field(default_factory=ResourceSpec)
    count: Annotated[int, Meta(ge=1, le=10**6)] = 1
    slices: Count = 0
    spread: bool = False
    same: Annotated[str, Meta(pattern=SAME_PATTERN)] = ""
    actor: bool = False
    packages: bool = False
    image: bool = False

    def check(self, field: str) -> None:
        """Raise InvalidInput, which names a part of `field`, if the bundles do not fill the slices."""
        check_slices(f"{field}.slices", self.slices, self.count)


class JobSpec(SpecPart, kw_only=True):
    """A job, as a person writes it.

    Attributes:
        name: shown to people; the job's id is this name and a unique suffix.
        id: makes resubmission idempotent: a second submission with the same id, name and namespace finds the first job,
            and must ask for the same work. Part of the job's id.
        replicas: processes that run as one gang, each with these resources.
        slices: whole TPU slices that the replicas fill, one replica on each host; 0 if they are not slices.
        same: "zone" or "region": all replicas are in the same one; "" for anywhere.
        spread: whether each replica is on a different agent.
        max_retries_failure: further attempts after the job's own failures.
        max_retries_preemption: further attempts after its host was taken away, died or failed.
        timeout: seconds that one attempt may run.
        pending_timeout: seconds that the job may wait for its start before it is stopped.
        grace: seconds between SIGTERM and SIGKILL when it is stopped or preempted.
        priority: from -500 to 499; higher goes first.
        namespace: scope of the names of jobs, actors and queues; by default the parent's, else the job's own id.
        user: who submitted it, for people and for the bill; by default the parent's. Nobody verifies it.
        parent: id of the job that ends this one when it ends.
        detached: the job outlives its parent.
        pool: name of the pool of agents that may run it.
        actor: the job serves calls: only agents that accept connections run it. It is restarted on its host if it
            fails and has retries left.
        outage: "stop": its tasks are killed as soon as their agent's leases may no longer be relied on, so that two
            attempts never run at once. "run": while the storage does not answer, they run on for `outage_grace`; if
            only their agent is cut off, the next attempt may run beside them. "": "stop" for actors and gangs, else
            "run".
        ports: names of ports that are reserved for it on its host; it finds their numbers as FRAY_PORT_<NAME>.
        outputs: patterns of the files to keep when it succeeds, by path relative to the directory where it starts.
        log_limit: bytes of output that are kept of one replica's attempt: of more, the first and the last half of this.
    """

    name: Name
    entrypoint: EntrypointSpec
    id: MaybeName = ""
    resources: ResourceSpec = msgspec.field(default_factory=ResourceSpec)
    environment: EnvironmentSpec = msgspec.field(default_factory=EnvironmentSpec)
    replicas: Annotated[int, Meta(ge=1, le=10_000)] = 1
    slices: Annotated[int, Meta(ge=0, le=10_000)] = 0
    same: Annotated[str, Meta(pattern=SAME_PATTERN)] = ""
    spread: bool = False
    max_retries_failure: Attempts = 0
    max_retries_preemption: Attempts = 100
    timeout: Interval | None = None
    pending_timeout: Interval | None = None
    grace: Seconds = 10.0
    priority: Priority = 0
    namespace: MaybeJobId = ""
    user: User = ""
    parent: MaybeJobId = ""
    detached: bool = False
    pool: Pool = DEFAULT_POOL
    actor: bool = False
    outage: Annotated[str, Meta(pattern=OUTAGE_PATTERN)] = ""
    health_check: HealthCheckSpec | None = None
    ports: list[Name] = []
    outputs: list[str] = []
    log_limit: Annotated[int, Meta(ge=SMALLEST_LOG, le=LARGEST_LOG, extra=IN_BYTES)] = 10**9


def check_slices(field: str, slices: int, bundles: int) -> None:
    """Raise InvalidInput unless the slices can have equally many of the bundles."""
    if slices and bundles % slices:
        remedy = f"replicas={bundles} is no multiple of it; give each slice as many replicas as it has hosts"
        raise InvalidInput(field, slices, remedy)


def port_variable(name: str) -> str:
    """The environment variable in which a task finds the number of this port."""
    return f"FRAY_PORT_{re.sub('[^A-Z0-9]', '_', name.upper())}"


def ends_with_trust(spec: JobSpec) -> bool:
    """Whether its tasks are killed as soon as their agent's leases may no longer be relied on; see `JobSpec.outage`."""
    return is_gang(spec) or (spec.outage or ("stop" if spec.actor else "run")) == "stop"


def is_gang(spec: JobSpec) -> bool:
    """Whether a placement chooses the job's agents: it has several replicas, or several devices would do.

    An agent claims any other job by itself.
    """
    return spec.replicas > 1 or bool(spec.resources.device_alternatives)
