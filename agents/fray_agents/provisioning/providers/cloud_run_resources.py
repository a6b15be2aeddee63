"""The job and the worker pools of Cloud Run that become a pool's machines, as they are requested and listed.

Google names executions, and running a job twice creates two. The arguments of an execution name its machine. If two
have the same one, the later execution is listed under a name of its own, as a copy of the first, so it is deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from google.cloud import run_v2
from google.protobuf import duration_pb2

from fray_agents.provisioning.identity import MACHINE_LABEL, pool_labels
from fray_agents.provisioning.provider import MachineRequest, ProviderError
from fray_coordinator.protocol.scaling.view import ListedMachine, ListedState
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


MACHINE_OPTION = "--machine"
"""The option of `fray agent` that names the machine."""

Made: TypeAlias = run_v2.Execution | run_v2.WorkerPool
"""The resource of which a machine consists."""


def listed_executions(
    pool: str, region: str, executions: Iterable[run_v2.Execution]
) -> Iterator[tuple[ListedMachine, Made]]:
    """The machines of a job's executions, without those whose agents ended by themselves."""
    names: set[str] = set()
    for execution in sorted(executions, key=lambda made: (made.create_time.timestamp(), made.name)):
        if execution.completion_time and not execution.failed_count:
            continue
        arguments = [*execution.template.containers[0].args]
        told = arguments[arguments.index(MACHINE_OPTION) + 1] if MACHINE_OPTION in arguments else ""
        is_copy = told in names
        name = told if told and not is_copy else f"{told or 'm'}-{execution.name.rpartition('-')[2]}"
        names.add(name)
        error = next((condition.message for condition in execution.conditions if condition.message), "")
        machine = ListedMachine(
            pool=pool,
            name=name,
            zone=region,
            state=_execution_state(execution),
            batch=name,
            operation=execution.name,
            error=error,
            billed=bool(execution.running_count or execution.completion_time),
            copy_of=told if is_copy else "",
        )
        yield machine, execution


def listed_worker_pools(
    pool: str, region: str, worker_pools: Iterable[run_v2.WorkerPool]
) -> Iterator[tuple[ListedMachine, Made]]:
    for made in worker_pools:
        name = made.labels[MACHINE_LABEL]
        state = _worker_pool_state(made)
        error = made.terminal_condition.message if state is ListedState.LOST else ""
        yield ListedMachine(pool=pool, name=name, zone=region, state=state, batch=name, error=error), made


def _execution_state(execution: run_v2.Execution) -> ListedState:
    reasons = run_v2.Condition.ExecutionReason
    if execution.delete_time or any(made.execution_reason is reasons.CANCELLING for made in execution.conditions):
        return ListedState.ENDING
    if execution.completion_time:
        return ListedState.LOST
    return ListedState.READY if execution.running_count >= execution.task_count else ListedState.CREATING


def _worker_pool_state(made: run_v2.WorkerPool) -> ListedState:
    if made.delete_time:
        return ListedState.ENDING
    if made.terminal_condition.state is run_v2.Condition.State.CONDITION_FAILED:
        return ListedState.LOST
    return ListedState.CREATING if made.reconciling else ListedState.READY
