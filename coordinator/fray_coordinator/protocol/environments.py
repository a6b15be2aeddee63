"""The environment of a job: its version of Python, and the environments that a pool's agents build in advance.

**Python.** The version that a job runs with.

**Invariant.** A callable is loaded by the minor version that pickled it: its code is bytecode, which no other version
reads.

**Unsafe sequence.**

1. A client on Python 3.12 submits a callable.
2. An agent on Python 3.11 unpickles it, and crashes or runs something else.

**Why this cannot happen.** The spec names the client's version, and `chosen_python` gives no other one. A claimer whose
host lacks the version leaves the job to hosts that have it. If no host has it, the job fails with a message that says
so.

**Pools.** The environments that a pool of agents names, so that its agents build them before jobs need them.

**Invariant.** The workspace archive of an environment that a pool names is kept, even if no job uses it any more.

**Unsafe sequence.**

1. User U names an environment for a pool.
2. Retention removes the last job of that project.
3. The sweep of blobs finds that no job names the archive, and deletes it.
4. Agent A joins the pool and cannot build the environment.

**Why this cannot happen.** The sweep and `fray fsck` count `blobs_named` as used, and delete nothing while the record
of a pool cannot be read. U stores the archive under the present month before naming the environment, and the sweep
never touches the present month.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from fray_coordinator.protocol.job_identity import comparable_environment
from fray_layouts.errors import InvalidInput
from fray_layouts.records import AgentPoolRecord, Software
from fray_layouts.spec import EnvironmentSpec, JobSpec, needs_environment

_PATCHES = 40
"""Patch releases of a minor version that are tried against a specifier such as ">=3.11.4". Python 3.9 had the
most so far, 26."""


def chosen_python(spec: JobSpec, software: Software) -> str:
    """The minor version for the job on this host: the agent's own if it fits, else the newest that does; "" if none."""
    have = [software.python, *reversed(software.pythons)]
    return next((minor for minor in have if minor and will_do(spec, minor)), "")


def will_do(spec: JobSpec, minor: str) -> bool:
    """Whether the job can run on some release of this minor version."""
    call = spec.entrypoint.callable
    if call is not None and call.python not in ("", minor):
        return False
    return not spec.environment.python or _allows(spec.environment.python, minor)


def _allows(specifier: str, minor: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # costs 10 ms, and most jobs ask for none

    try:
        allowed = SpecifierSet(specifier)
    except InvalidSpecifier:  # somebody wrote it by hand, and no version satisfies it
        return False
    return any(allowed.contains(f"{minor}.{patch}") for patch in range(_PATCHES))


def python_shortage(spec: JobSpec, software: Software) -> str:
    """The reason why a host has no Python for the job; "" if it has one.

    It is "" also if the job has an image, or if nothing is known of the host.
    """
    if spec.environment.docker_image or not software.python or chosen_python(spec, software):
        return ""
    call, wanted = spec.entrypoint.callable, spec.environment.python
    asks = [f"{call.python} (which pickled the callable)"] if call is not None and call.python else []
    asks += [wanted] if wanted else []
    has = ", ".join(dict.fromkeys([software.python, *software.pythons]))
    no_uv = "" if software.pythons else ", and no uv to use another one"
    return f"Python: {' and '.join(asks)} wanted, {has} here{no_uv}"


def some_other_has_python(spec: JobSpec, others: Iterable[Software]) -> bool:
    """Whether one of the other known hosts has a Python for the job."""
    return any(software.python and not python_shortage(spec, software) for software in others)


MAX_POOL_ENVIRONMENTS = 20
"""Environments of one pool. Each of its agents builds them all, one after another, before it claims a job."""


def name_environment(record: AgentPoolRecord | None, wanted: EnvironmentSpec) -> AgentPoolRecord | None:
    """The pool's record with one more environment; None if the pool names it already.

    Raises:
        InvalidInput: the environment has variables, or the pool names as many environments as it may.
    """
    for field in ("env_vars", "secret_env_vars"):
        for name in getattr(wanted, field):
            raise InvalidInput(f"environment.{field}", name, "a pool's environments have no variables; jobs have them")
    before = record or AgentPoolRecord()
    if comparable_environment(wanted) in map(comparable_environment, before.environments):
        return None
    if len(before.environments) >= MAX_POOL_ENVIRONMENTS:
        remedy = f"a pool names at most {MAX_POOL_ENVIRONMENTS} environments; clear them: fray env clear --pool POOL"
        raise InvalidInput("environments", len(before.environments), remedy)
    return replace(before, environments=[*before.environments, wanted])


def without_environments(record: AgentPoolRecord) -> AgentPoolRecord | None:
    """The record without environments; None if it has none."""
    return replace(record, environments=[]) if record.environments else None


def blobs_named(record: AgentPoolRecord) -> list[str]:
    """Keys of the blobs that the pool's environments need."""
    return [environment.workspace.blob for environment in record.environments if environment.workspace is not None]


def environment_shortage(environment: EnvironmentSpec, software: Software) -> str:
    """The reason why a host cannot run jobs with this environment; "" if it can."""
    if needs_environment(environment) and not software.pythons:
        return "this host has no uv"
    if environment.docker_image and not software.containers:
        return "this host has no podman and no docker"
    return ""
