"""The environments that a pool of agents names, so that its agents build them before jobs need them.

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

from msgspec.structs import replace

from fray_coordinator.protocol.resubmission import comparable_environment
from fray_layouts.errors import InvalidInput
from fray_layouts.records import AgentPoolRecord, Software
from fray_layouts.spec import EnvironmentSpec, needs_environment

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
