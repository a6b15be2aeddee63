"""The workspace that a request asks for, and the environment of a child: its parent's, unless it names another."""

from __future__ import annotations

import asyncio
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

AUTO = "auto"
"""The word for the workspace of the project that a program or a callable belongs to."""


_environments: dict[str, EnvironmentSpec] = {}
"""Of the job that this process runs, by its id: it never changes."""


@dataclass(frozen=True)
class WorkspaceChoice:
    """The workspace that a request asks for.

    Attributes:
        folder: its folder, at whose top the job starts; None in a job for that job's own, elsewhere for the project's,
            where the job starts in the folder of it that this process is in.
        call: the callable whose project it is; None for the current directory's.
        required: no project is an error.
    """

    folder: Path | None = None
    call: Callable[..., Any] | None = None
    required: bool = False

    def find(self) -> Path | None:
        """The folder to pack. Raises InvalidInput: there is none, but one is required."""
        from fray.workspace.projects import find_project, project_of_call

        if self.folder is not None:
            return self.folder
        project = project_of_call(self.call) if self.call is not None else None
        if project is None and (self.call is None or self.required):
            project = find_project(Path.cwd())
        if project is None and self.required:
            remedy = "there is no project here (a folder with pyproject.toml, uv.lock or .git); name the folder"
            raise InvalidInput("environment.workspace", AUTO, remedy)
        return project


def workspace_choice(request: JobRequest) -> WorkspaceChoice | None:
    """The workspace that a request asks for; None for none."""
    entrypoint = entrypoint_of(request.entrypoint)
    call = entrypoint.callable if isinstance(entrypoint, CallableEntrypoint) else None
    given = request.environment.workspace if request.environment is not None else None
    if given is None:
        return None if call is None else WorkspaceChoice(call=call)
    return named_workspace(given, Path(), call)


def named_workspace(given: str, base: Path, call: Callable[..., Any] | None = None) -> WorkspaceChoice | None:
    """The workspace that a text means: a folder, relative to `base`; "auto"; "" is none."""
    if given == AUTO:
        return WorkspaceChoice(call=call, required=True)
    return WorkspaceChoice((base / os.path.expanduser(given)).absolute()) if given else None


async def with_workspaces(
    core: Core, specs: Sequence[JobSpec], choices: Sequence[WorkspaceChoice | None], job_id: str = ""
) -> tuple[list[JobSpec], list[StoredWorkspace]]:
    """The specs with the workspaces that were chosen, and those that are now stored for them.

    Args:
        job_id: the job that submits them; "" if it is none. What is not chosen by name comes from its environment:
            what lies around a job on its host is nobody's project.
    """
    from fray.workspace.upload import store_workspace  # packing, which few processes do

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
            spec = _in_workspace(spec, stored[folder], "" if choice.folder is not None else _place_in(folder))
        complete.append(spec)
    return complete, list(stored.values())


async def _environment_of(core: Core, job_id: str) -> EnvironmentSpec:
    if job_id not in _environments:
        found = await core.records.read(JobKeys.key(job_id), JobRecord)
        if found is None:  # the submission says so
            return EnvironmentSpec()
        _environments[job_id] = found.record.spec.environment
    return _environments[job_id]


def _in_workspace(spec: JobSpec, stored: StoredWorkspace, folder: str) -> JobSpec:
    workspace = replace(stored.spec, folder=folder)
    python = spec.environment.python or stored.python
    return replace(spec, environment=replace(spec.environment, workspace=workspace, python=python))


def _place_in(project: Path) -> str:
    """The path of the current directory below the project's top; "" if it is not below it."""
    here = Path.cwd()
    return "" if here == project or not here.is_relative_to(project) else str(here.relative_to(project))


def inherited(child: EnvironmentSpec, parent: EnvironmentSpec) -> EnvironmentSpec:
    """A child's environment: variables of its own, and what it does not name of its parent's."""
    return replace(
        child,
        workspace=child.workspace or parent.workspace,
        extras=child.extras or parent.extras,
        pip_packages=child.pip_packages or parent.pip_packages,
        python=child.python or parent.python,
        docker_image=child.docker_image or parent.docker_image,
    )
