"""The environments that a pool of agents names, so that jobs find them built.

**Invariant.** The workspace of an environment that a pool names stays, also when no job has it any more.

**Unsafe sequence.** An environment is named for a pool; the jobs of that project are removed with time; the sweep of
blobs finds the archive without a job and deletes it; agents that join later cannot make the environment.

**Why this cannot happen.** Sweep and check count `blobs_named` as used, and do nothing while a pool's record cannot be
read. Who names an environment has stored its archive under the present month, which no sweep touches.
"""

from __future__ import annotations

from msgspec.structs import replace

from fray_coordinator.protocol.resubmission import comparable_environment
from fray_layouts.errors import InvalidInput
from fray_layouts.records import AgentPoolRecord, Software
from fray_layouts.spec import EnvironmentSpec, needs_environment

MAX_POOL_ENVIRONMENTS = 20
"""Environments of one pool: each of its agents builds them all, one after another, before it claims."""


def name_environment(record: AgentPoolRecord | None, wanted: EnvironmentSpec) -> AgentPoolRecord | None:
    """The pool's record that names the environment, too; None if it does already.

    Raises:
        InvalidInput: the environment has variables, or the pool names as many as it may.
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
    """The record that names none; None if it does already."""
    return replace(record, environments=[]) if record.environments else None


def blobs_named(record: AgentPoolRecord) -> list[str]:
    """Keys of the blobs that the pool's environments need."""
    return [environment.workspace.blob for environment in record.environments if environment.workspace is not None]


def environment_shortage(environment: EnvironmentSpec, software: Software) -> str:
    """Why a host is not for jobs with this environment; "" if it may be."""
    if needs_environment(environment) and not software.pythons:
        return "this host has no uv"
    if environment.docker_image and not software.containers:
        return "this host has no podman and no docker"
    return ""
