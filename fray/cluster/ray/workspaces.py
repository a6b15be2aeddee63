"""The folder of code that a job brings to Ray: Ray's own package of a working directory."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from fray.types import JobRequest
from fray.workspace.choice import WorkspaceChoice, workspace_choice
from fray_layouts.spec import JobSpec, WorkspaceSpec


def with_workspace(spec: JobSpec, request: JobRequest, in_job: bool) -> JobSpec:
    """The spec with the package of the workspace that the request asks for, which is with Ray now.

    Args:
        in_job: this code runs in a job, whose code and packages its children have unless they name a folder.

    Raises:
        InvalidInput: there is no project, but one is required.
    """
    choice = workspace_choice(request)
    if choice is None or (in_job and choice.folder is None) or (folder := choice.find()) is None:
        return spec
    workspace = WorkspaceSpec(blob=_uploaded(folder), folder=_place_in(folder, choice))
    return replace(spec, environment=replace(spec.environment, workspace=workspace))


def workspace_folder(request: JobRequest) -> Path | None:
    """The folder of code that a request outside of jobs brings. Raises InvalidInput, as `with_workspace`."""
    choice = workspace_choice(request)
    return choice.find() if choice is not None else None


def _uploaded(folder: Path) -> str:
    """The URI of Ray's package of a folder; what .gitignore names is left out."""
    from ray._private.runtime_env.working_dir import upload_working_dir_if_needed

    made: dict[str, str] = upload_working_dir_if_needed({"working_dir": str(folder)}, include_gitignore=True)
    return made["working_dir"]


def _place_in(folder: Path, choice: WorkspaceChoice) -> str:
    """Where in it the job starts: at its top, of a project in the folder of it that this process is in."""
    here = Path.cwd()
    inside = choice.folder is None and here != folder and here.is_relative_to(folder)
    return str(here.relative_to(folder)) if inside else ""
