"""The job and the worker pools of Cloud Run that become a pool's machines."""

from __future__ import annotations

import hashlib

from google.cloud import run_v2
from google.protobuf import duration_pb2

from fray_agents.provisioning.identity import MACHINE_LABEL, pool_labels
from fray_agents.provisioning.provider import MachineRequest, ProviderError
from fray_agents.provisioning.providers.cloud_run_listing import MACHINE_OPTION
from fray_layouts.records import CloudRunSettings

TEMPLATE_LABEL = "fray-template"
"""Label with a digest of a job's template; the job is written again if the digest differs."""

LONGEST = 7 * 24 * 3600
"""Most seconds that Cloud Run runs a task of a job; its agent's jobs are then tried again elsewhere."""


def settings_of(request: MachineRequest) -> CloudRunSettings:
    """The pool's settings. Raises ProviderError: there are none, so the image is not known."""
    if request.spec.cloud_run is None:
        raise ProviderError("invalid", f"pool {request.pool} names no image; set cloud_run.image")
    return request.spec.cloud_run


def job_of_pool(name: str, cluster: str, request: MachineRequest) -> run_v2.Job:
    """The job whose executions are the pool's machines."""
    template = run_v2.TaskTemplate(
        containers=[_container(request)],
        max_retries=0,
        timeout=duration_pb2.Duration(seconds=LONGEST),
        service_account=settings_of(request).service_account,
    )
    text = run_v2.TaskTemplate.to_json(template, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return run_v2.Job(
        name=name,
        labels={**pool_labels(cluster, request.pool), TEMPLATE_LABEL: digest},
        template=run_v2.ExecutionTemplate(task_count=1, template=template),
    )


def run_of_machine(job: str, machine: str, request: MachineRequest) -> run_v2.RunJobRequest:
    """One execution: a task for each host, each with an agent that leaves once it is idle."""
    arguments = [*_arguments(request), MACHINE_OPTION, machine, "--idle-exit", f"{request.spec.idle_seconds:g}"]
    overrides = run_v2.RunJobRequest.Overrides(
        container_overrides=[run_v2.RunJobRequest.Overrides.ContainerOverride(args=arguments)],
        task_count=request.hosts,
    )
    return run_v2.RunJobRequest(name=job, overrides=overrides)


def worker_pool_of_machine(cluster: str, machine: str, request: MachineRequest) -> run_v2.WorkerPool:
    """A machine that stays: Cloud Run starts its agent again whenever it ends."""
    container = _container(request)
    container.args = [*_arguments(request), MACHINE_OPTION, machine]
    return run_v2.WorkerPool(
        labels={**pool_labels(cluster, request.pool), MACHINE_LABEL: machine},
        template=run_v2.WorkerPoolRevisionTemplate(
            containers=[container], service_account=settings_of(request).service_account
        ),
        scaling=run_v2.WorkerPoolScaling(manual_instance_count=request.hosts),
    )


def _container(request: MachineRequest) -> run_v2.Container:
    limits = {}
    if capacity := request.spec.capacity:
        limits = {"cpu": f"{capacity.cpu / 1000:g}", "memory": f"{capacity.memory >> 20}Mi"}
    return run_v2.Container(
        image=settings_of(request).image,
        command=["fray"],
        args=_arguments(request),
        resources=run_v2.ResourceRequirements(limits=limits),
    )


def _arguments(request: MachineRequest) -> list[str]:
    """Arguments of `fray`. Containers of jobs and worker pools cannot be reached, so their agents run no actors."""
    labels = [part for name, value in sorted(request.labels.items()) for part in ("--label", f"{name}={value}")]
    place = ["--region", request.zone]
    return ["agent", "--root", request.root, "--pool", request.pool, "--no-inbound", *place, *labels]
