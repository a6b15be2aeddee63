"""Uploads the folder of code that a job brings to Ray, as Ray's own package of a working directory."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from fray.types import JobRequest
from fray.workspace.choice import start_folder, workspace_choice
from fray_layouts.spec import JobSpec, WorkspaceSpec


def with_workspace(spec: JobSpec, request: JobRequest, in_job: bool) -> JobSpec:
    """Upload the workspace that the request asks for, and return the spec with its package.

    Args:
        in_job: whether this code runs in a job. Children have their parent's code and packages, or name a folder.

    Raises:
        InvalidInput: the request requires a project, and there is none.
    """
    choice = workspace_choice(request)
    if choice is None or (in_job and choice.folder is None) or (folder := choice.find()) is None:
        return spec
    workspace = WorkspaceSpec(blob=_uploaded(folder), folder=start_folder(folder, choice))
    return replace(spec, environment=replace(spec.environment, workspace=workspace))


def workspace_folder(request: JobRequest) -> Path | None:
    """The folder of code that a request outside of jobs brings. Raises InvalidInput like `with_workspace`."""
    choice = workspace_choice(request)
    return choice.find() if choice is not None else None


def _uploaded(folder: Path) -> str:
    """Upload a folder as a package, without what .gitignore names, and return the package's URI."""
    from ray._private.runtime_env.working_dir import upload_working_dir_if_needed

    made: dict[str, str] = upload_working_dir_if_needed({"working_dir": str(folder)}, include_gitignore=True)
    return made["working_dir"]
