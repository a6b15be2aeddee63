"""The options of commands that submit: which folder of code the job gets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fray.cli import output

if TYPE_CHECKING:
    from fray.workspace.choice import WorkspaceChoice
    from fray.workspace.upload import StoredWorkspace

F = TypeVar("F", bound=Callable[..., Any])


def workspace_options(command: F) -> F:
    """Give a command `--workspace` and `--no-workspace`."""
    named = click.option(
        "--workspace", metavar="DIR", help="Folder that the job gets a copy of; by default the current project."
    )
    none = click.option("--no-workspace", is_flag=True, help="Give the job no folder.")
    return named(none(command))


def chosen_workspace(folder: str | None, none: bool) -> WorkspaceChoice | None:
    """The workspace that the options choose; by default the project around the current directory, if there is one."""
    from fray.workspace.choice import WorkspaceChoice, named_workspace

    if folder is not None and none:
        raise click.UsageError("--workspace and --no-workspace contradict each other; give one of them")
    if none:
        return None
    return WorkspaceChoice() if folder is None else named_workspace(folder, Path())


def print_stored(workspace: StoredWorkspace) -> None:
    """Print on stderr, in one line, which workspace was stored."""
    output.echo(f"fray: {workspace}", err=True)
