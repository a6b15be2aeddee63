"""Finds the workspace that a request asks for, and the environment that a child inherits from its parent."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fray.entrypoints import CallableEntrypoint, entrypoint_of
from fray.types import JobRequest
from fray_coordinator.core import Core
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import JobRecord
from fray_layouts.spec import EnvironmentSpec, JobSpec

if TYPE_CHECKING:
    from fray.workspace.upload import StoredWorkspace

log = logging.getLogger("fray")

AUTO = "auto"
"""The value that means the project that a program or a callable belongs to."""

_environments: dict[str, EnvironmentSpec] = {}
"""The environment of the job that this process runs, by the job's id. It never changes."""


@dataclass(frozen=True)
class WorkspaceChoice:
    """The workspace that a request asks for.

    Attributes:
        folder: the folder that the request names; the job starts at its top. None: in a job, that job's own workspace;
            elsewhere the project, where the new job starts in the same folder of it as this process.
        call: the callable whose project it is; None for the project of the current directory.
        required: whether it is an error if there is no project.
    """

    folder: Path | None = None
    call: Callable[..., Any] | None = None
    required: bool = False

    def find(self) -> Path | None:
        """Find the folder to pack; None if there is none. Raises InvalidInput if there is none but one is required."""
        from fray.workspace.projects import current_project, find_project, project_of_call

        if self.folder is not None:
            return self.folder
        if self.required:
            project = (project_of_call(self.call) if self.call is not None else None) or find_project(Path.cwd())
        else:
            project = project_of_call(self.call) if self.call is not None else current_project()
        if project is None and self.required:
            remedy = "there is no project here (no pyproject.toml, uv.lock, .git or requirements.txt); name the folder"
            raise InvalidInput("environment.workspace", AUTO, remedy)
        return project


def workspace_choice(request: JobRequest) -> WorkspaceChoice | None:
    """The workspace that a request asks for; None if it asks for none."""
    entrypoint = entrypoint_of(request.entrypoint)
    call = entrypoint.callable if isinstance(entrypoint, CallableEntrypoint) else None
    given = request.environment.workspace if request.environment is not None else None
    if given is None:
        return WorkspaceChoice(call=call)
    return named_workspace(given, Path(), call)


def named_workspace(given: str, base: Path, call: Callable[..., Any] | None = None) -> WorkspaceChoice | None:
    """The workspace for a value of `EnvironmentConfig.workspace`. A folder is relative to `base`; "" means none."""
    if given == AUTO:
        return WorkspaceChoice(call=call, required=True)
    return WorkspaceChoice((base / os.path.expanduser(given)).absolute()) if given else None


async def with_workspaces(
    core: Core, specs: Sequence[JobSpec], choices: Sequence[WorkspaceChoice | None], job_id: str = ""
) -> tuple[list[JobSpec], list[StoredWorkspace]]:
    """Store the chosen workspaces. Returns the specs with them, and the workspaces that were stored.

    Args:
        job_id: id of the job that submits the specs; "" outside of jobs. In a job, workspaces that are not named come
            from its own environment, because the folders around it on its host are not its project.
    """
    from fray.workspace.projects import lonely_module
    from fray.workspace.upload import store_workspace  # imported late: few processes pack workspaces

    unnamed = any(choice is not None and choice.folder is None for choice in choices)
    own = await _environment_of(core, job_id) if job_id and unnamed else EnvironmentSpec()
    stored: dict[Path, StoredWorkspace] = {}
    complete = []
    for spec, choice in zip(specs, choices, strict=True):
        if choice is not None and job_id and choice.folder is None and (own.workspace or not choice.required):
            spec = replace(spec, environment=inherited(spec.environment, own))
        elif choice is not None and (folder := await asyncio.to_thread(choice.find)) is not None:
            if folder not in stored:
                stored[folder] = await store_workspace(core, folder)
            spec = _in_workspace(spec, stored[folder], start_folder(folder, choice))
        elif choice is not None and choice.call is not None and (file := lonely_module(choice.call)) is not None:
            log.warning(
                "job %s gets no copy of %s: its folder is not a project (it has no pyproject.toml, uv.lock, .git or "
                "requirements.txt); EnvironmentConfig(workspace=%r) copies it",
                *(spec.name, file.name, str(file.parent)),
            )
        complete.append(spec)
    return complete, list(stored.values())


async def _environment_of(core: Core, job_id: str) -> EnvironmentSpec:
    if job_id not in _environments:
        found = await core.records.read(JobKeys.key(job_id), JobRecord)
        if found is None:  # the submission then raises the error
            return EnvironmentSpec()
        _environments[job_id] = found.record.spec.environment
    return _environments[job_id]


def _in_workspace(spec: JobSpec, stored: StoredWorkspace, folder: str) -> JobSpec:
    workspace = replace(stored.spec, folder=folder)
    python = spec.environment.python or stored.python
    return replace(spec, environment=replace(spec.environment, workspace=workspace, python=python))


def start_folder(folder: Path, choice: WorkspaceChoice) -> str:
    """The path below the workspace's top in which the job starts.

    In a project it is the current directory, if that is inside of the project. Otherwise it is "", the top.
    """
    here = Path.cwd()
    inside = choice.folder is None and here != folder and here.is_relative_to(folder)
    return str(here.relative_to(folder)) if inside else ""


def inherited(child: EnvironmentSpec, parent: EnvironmentSpec) -> EnvironmentSpec:
    """A child's environment: its own variables, and everything else from its parent unless the child names it."""
    return replace(
        child,
        workspace=child.workspace or parent.workspace,
        extras=child.extras or parent.extras,
        groups=child.groups or parent.groups,
        pip_packages=child.pip_packages or parent.pip_packages,
        python=child.python or parent.python,
        docker_image=child.docker_image or parent.docker_image,
    )
