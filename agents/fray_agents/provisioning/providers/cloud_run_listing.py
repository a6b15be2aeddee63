"""Converts executions and worker pools of Cloud Run to machines.

Google names executions, and running a job twice creates two. The arguments of an execution name its machine. If two
have the same one, the later execution is listed under a name of its own, as a copy of the first, so it is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from google.cloud import run_v2

from fray_agents.provisioning.identity import MACHINE_LABEL
from fray_coordinator.protocol.scaling.listed import ListedMachine, ListedState

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
