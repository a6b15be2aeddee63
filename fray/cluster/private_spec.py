"""The spec of a job on a private cluster, which runs all jobs on this machine.

`LaunchingCluster` and `fray run` make the spec that a shared cluster would get, and pass it on to `private_spec`. What
this machine cannot give is refused by the rules by which agents claim, so that nobody takes a run on a laptop for one
on eight GPUs. A cluster that simulates accepts it, and logs that. Nothing else of the demands is left, since a private
cluster limits neither memory nor disk, and its jobs run with the packages that are installed here.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache

import msgspec

from fray.job_spec import LATER_RELEASE, checked_parts, to_spec
from fray.types import JobRequest, ResourceConfig
from fray_agents.host.capacity import HostPlace, discover, discover_without_devices
from fray_coordinator.protocol.scheduling import HostKind, elsewhere, shape_of, shortage
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import ReservationKeys
from fray_layouts.records import Resources
from fray_layouts.spec import DEFAULT_POOL, EnvironmentSpec, JobSpec, ResourceSpec, is_gang
from fray_runtime.current_task import PrivateMode

log = logging.getLogger("fray")

_KIND = HostKind(preemptible=False, inbound=True, packages=True, containers=False)
"""The kind of host that a private cluster makes of this machine."""

_REMEDY = (
    "name a shared cluster by FRAY_CLUSTER_SPEC or --root, or run it on this machine without these, by "
    "`fray run --simulate`, LocalCluster(simulate=True) or FRAY_CLUSTER_SPEC='local?simulate=True'"
)


def private_spec_of(request: JobRequest, mode: PrivateMode) -> JobSpec:
    """Make the checked spec of a request for a private cluster. Raises InvalidInput as `to_spec` and `private_spec`."""
    asked, environment = checked_parts(request)
    if mode == "simulated":
        asked = replace(asked, **{name: getattr(ResourceConfig(), name) for name in LATER_RELEASE})
    full = replace(
        request,
        resources=asked,
        environment=replace(environment, workspace=None),
        max_task_failures=0,
        processes_per_task=1,
    )
    return private_spec(to_spec(full), mode)


def private_spec(spec: JobSpec, mode: PrivateMode) -> JobSpec:
    """The spec with cores as its only demand, and at most one core, so that a job's children find room beside it.

    A gang gets no cores, because all of its replicas have to run at once, however few cores there are.

    Demands that this machine cannot meet are logged, once each, if the mode is "simulated".

    Raises:
        InvalidInput: there are such demands, and the mode is "real".
    """
    if lacks := unmet_demands(spec):
        if mode == "real":
            raise InvalidInput("job", spec.name, f"this machine cannot run it ({'; '.join(lacks)}): {_REMEDY}")
        _say_once(f"simulated on this machine: {'; '.join(lacks)}")
    environment = spec.environment
    if left_out := [*environment.extras, *environment.groups, *environment.pip_packages]:
        told = ", ".join(left_out)
        _say_once(f"not installed: {told}; jobs of a private cluster use the packages that are installed here")
    resources = ResourceSpec(cpu=0 if is_gang(spec) else min(spec.resources.cpu, 1), hard_cpu=spec.resources.hard_cpu)
    variables = EnvironmentSpec(env_vars=environment.env_vars, secret_env_vars=environment.secret_env_vars)
    return msgspec.structs.replace(
        spec, resources=resources, environment=variables, pool=_pool(spec), slices=0, spread=False, same=""
    )


def unmet_demands(spec: JobSpec) -> list[str]:
    """The demands of a job that this machine cannot meet, in words, devices first; [] if it can run here."""
    wants = spec.resources
    sizes = msgspec.structs.replace(wants, memory=wants.memory_limit, disk=wants.disk_limit)
    shape = shape_of(msgspec.structs.replace(spec, resources=sizes))
    here = _machine(bool(shape.device))
    lacks = [*shortage(shape, here, _KIND, "here"), *elsewhere(wants, HostPlace())]
    if spec.pool != _pool(spec):
        lacks.append(f"pool: {spec.pool} wanted, none here")
    if spec.spread:
        lacks.append(f"spread: {spec.replicas} hosts wanted, 1 here")
    return lacks


def _pool(spec: JobSpec) -> str:
    """The pool in which the job runs here: a reservation's, which a private cluster grants at once, or the default."""
    return spec.pool if ReservationKeys.of_pool(spec.pool) else DEFAULT_POOL


@cache
def _machine(with_devices: bool) -> Resources:
    """What this machine has. Only jobs that ask for devices wait for the seconds that a look at GPUs takes."""
    return discover() if with_devices else discover_without_devices()


@cache
def _say_once(text: str) -> None:
    """Log a warning, unless this process has logged the same one."""
    log.warning("%s", text)
