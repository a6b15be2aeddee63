"""`fray env`: what the agents of this user have built on this host."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray.cli.output import format_duration

if TYPE_CHECKING:
    from fray_agents.environments.cache import CacheEntry

_SHOWN_DIGITS = 12
"""Digits of a key that people are shown."""


@click.group(name="env")
def command() -> None:
    """List, build ahead and remove what the agents of this user keep on this host: environments and workspaces.

    No cluster is asked. What is built here is found by every agent of this user on this host.
    """


def _subcommand(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    def add(function: Callable[..., Any]) -> click.Command:
        part = as_command(function)
        command.add_command(part, name)
        return part

    return add


@_subcommand("list")
def _list(app: App) -> None:
    """List what is there, in the order of its last use."""
    from fray_agents.environments.cache import host_cache

    _show(app, host_cache().entries())


@_subcommand("clear")
def _clear(app: App) -> None:
    """Remove all that no job uses now. What the next job needs is built again."""
    from fray_agents.environments.cache import host_cache

    _show(app, asyncio.run(host_cache().trim(0)))


@_subcommand("warm")
@click.option("--workspace", metavar="DIR", help="The project; by default the one around the current directory.")
@click.option("--extra", multiple=True, metavar="NAME", help="An extra of the project, installed with its packages.")
@click.option("--with", multiple=True, metavar="PACKAGE", help="A requirement that is installed on top.")
def _warm(app: App, workspace: str | None, extra: tuple[str, ...], **options: Any) -> None:
    """Build the environment that jobs of a project run in, so that none of them waits for it."""
    from fray.workspace.choice import AUTO, named_workspace

    choice = named_workspace(workspace or AUTO, Path())
    folder = choice.find() if choice is not None else None
    assert folder is not None, "a project that is required was found"
    began = time.monotonic()
    python = asyncio.run(_warmed(folder, extra, options["with"]))
    seconds = format_duration(time.monotonic() - began)
    app.show({"workspace": str(folder), "python": python}, lambda: output.echo(f"{python} is ready after {seconds}"))


async def _warmed(folder: Path, extras: tuple[str, ...], requirements: tuple[str, ...]) -> str:
    """Build the environment of the workspace as agents unpack it; the path of its interpreter."""
    from fray.workspace.archive import packed
    from fray.workspace.projects import read_project
    from fray.workspace.selection import workspace_files
    from fray_agents.environments.cache import host_cache
    from fray_agents.environments.python_env import hold_environment, needs_interpreter
    from fray_agents.environments.workspace import unpack
    from fray_layouts.object_keys import BlobKeys
    from fray_layouts.spec import EntrypointSpec, EnvironmentSpec, JobSpec, WorkspaceSpec

    files = workspace_files(folder)
    archive, project = packed(folder, files), read_project(folder, {file.name for file in files})
    workspace = WorkspaceSpec(blob=BlobKeys.key(time.time(), archive.digest), dependencies=project.dependencies)
    environment = EnvironmentSpec(
        workspace=workspace, extras=list(extras), pip_packages=list(requirements), python=project.python
    )
    spec = JobSpec(name="warm", entrypoint=EntrypointSpec(command=["python"]), environment=environment)
    if not needs_interpreter(spec):
        raise click.UsageError(f"{folder} states no packages; name some with --with")
    with tempfile.TemporaryDirectory() as unpacked:
        unpack(archive.data, Path(unpacked))
        async with AsyncExitStack() as held:
            found = await hold_environment(host_cache(), spec, Path(unpacked), held, None, _Teller())
    return found.python


class _Teller:
    """Tells on stderr what is done, but not each second."""

    def __init__(self) -> None:
        self._told_at = 0.0

    def __call__(self, text: str) -> None:
        if time.monotonic() - self._told_at > 1.0:
            self._told_at = time.monotonic()
            output.echo(f"fray: {text}", err=True)


def _show(app: App, entries: list[CacheEntry]) -> None:
    from fray_agents.environments.python_env import installed_packages
    from fray_layouts.units import format_bytes

    now = time.time()
    found = [(entry, installed_packages(entry.path)) for entry in entries]
    data = [
        {
            "kind": entry.kind,
            "key": entry.key,
            "size": entry.size,
            "last_used": entry.last_used,
            "packages": packages,
            "path": str(entry.path),
        }
        for entry, packages in found
    ]
    rows = [
        (
            entry.kind,
            entry.key[:_SHOWN_DIGITS],
            format_bytes(entry.size),
            f"{format_duration(now - entry.last_used)} ago",
            " ".join(packages),
        )
        for entry, packages in found
    ]
    app.show(data, lambda: output.print_table(("KIND", "KEY", "SIZE", "USED", "PACKAGES"), rows))
