"""Submits jobs as children of the job that this code runs in, if it runs in one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fray.cluster.current_job import CurrentJob, current_job_on, current_user
from fray.types import JobGroupConfig, JobRequest
from fray.workspace.choice import WorkspaceChoice, with_workspaces
from fray_agents.tasks.current_task import task_environ
from fray_agents.tasks.environment import CHILDREN_MARKER, PRIVATE_VAR
from fray_coordinator.core import Core
from fray_coordinator.jobs.submission import Submitted, submit
from fray_coordinator.placements.launching import GroupWish, launch
from fray_coordinator.placements.routing import ReservationRouter
from fray_coordinator.variables import read_variable
from fray_layouts.errors import InvalidInput
from fray_layouts.spec import JobSpec
from fray_layouts.spec_checks import check_name

if TYPE_CHECKING:
    from fray.workspace.upload import StoredWorkspace


def as_children(specs: Sequence[JobSpec], mine: CurrentJob | None, namespace: str) -> list[JobSpec]:
    """Fill in the parent `mine`, the namespace and the current user of specs that do not name these.

    It leaves a marker in the job's directory, so that the job's agent knows that there are children to stop.
    """
    user, parent = current_user(), mine.job_id if mine else ""
    prepared = [
        replace(
            spec,
            namespace=spec.namespace or namespace,
            user=spec.user or user,
            parent=spec.parent or parent,
        )
        for spec in specs
    ]
    if mine is not None and any(spec.parent == mine.job_id for spec in prepared):
        Path(mine.task_dir, CHILDREN_MARKER).touch()
    return prepared


async def submit_from_command(
    core: Core,
    specs: Sequence[JobSpec],
    choices: Sequence[WorkspaceChoice | None],
    on_stored: Callable[[StoredWorkspace], None],
) -> list[Submitted]:
    """Submit specs for the CLI, as children of the job that runs the command, if there is one.

    Specs without a namespace get that job's namespace, else FRAY_NAMESPACE; without either, each gets its own.

    Args:
        choices: the workspace that each spec brings; they are ignored on a private cluster.
        on_stored: called with each workspace once it is in the storage.
    """
    mine = current_job_on(core.root)
    is_private = mine is not None and bool(read_variable(PRIVATE_VAR, task_environ()))
    if any(choices) and not is_private:
        specs, stored = await with_workspaces(core, specs, choices, mine.job_id if mine else "")
        for workspace in stored:
            on_stored(workspace)
    namespace = mine.namespace if mine else read_variable("FRAY_NAMESPACE", task_environ()) or ""
    prepared = as_children(specs, mine, namespace)
    return await submit_prepared(
        core, prepared if is_private else await ReservationRouter().route(core, prepared), mine
    )


async def submit_prepared(
    core: Core, specs: Sequence[JobSpec], mine: CurrentJob | None, driver: str = ""
) -> list[Submitted]:
    """Submit specs made by `as_children`. Returns the jobs in the same order.

    Children of `mine` are submitted for the attempt that runs this code. driver: the job that stands for this program;
    "" if there is none yet.
    """
    own = [mine is not None and spec.parent == mine.job_id for spec in specs]
    done: dict[int, Submitted] = {}
    above = [driver] if driver else []
    for is_own, attempt, ancestors in (
        (True, mine.attempt if mine else None, mine.ancestors if mine else ()),
        (False, None, above),
    ):
        chosen = [number for number, kind in enumerate(own) if kind is is_own]
        submitted = await submit(core, [specs[number] for number in chosen], attempt, ancestors=ancestors)
        done.update(zip(chosen, submitted, strict=True))
    return [done[number] for number in range(len(specs))]


async def submit_group(
    core: Core, specs: Sequence[JobSpec], wish: GroupWish, mine: CurrentJob | None, driver: str = ""
) -> list[Submitted]:
    """Submit specs made by `as_children` as one group, whose jobs start together or not at all."""
    is_own = mine is not None and all(spec.parent == mine.job_id for spec in specs)
    if mine is not None and is_own:
        return await launch(core, specs, wish, mine.attempt, mine.ancestors)
    return await launch(core, specs, wish, ancestors=[driver] if driver else [])


def as_group(requests: Sequence[JobRequest], group: JobGroupConfig) -> list[JobRequest]:
    """Return the requests in the group's namespace. Raises InvalidInput if one of them cannot be in a group."""
    if not isinstance(group, JobGroupConfig):
        raise InvalidInput("group", group, "give a JobGroupConfig(name)")
    check_name("group.name", group.name)
    if not requests:
        raise InvalidInput("requests", [], "give at least one request: an empty group can never start")
    for number, request in enumerate(requests):
        if group.namespace and request.namespace not in (None, group.namespace):
            raise InvalidInput("namespace", request.namespace, f"the group's is {group.namespace}; say it once")
        if request.id is not None:
            remedy = "a job of a group is always a new one and is not looked up by its id; leave it out"
            raise InvalidInput(f"requests[{number}].id", request.id, remedy)
    return [dataclasses.replace(request, namespace=group.namespace or request.namespace) for request in requests]
