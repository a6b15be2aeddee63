"""`fray env`: list, prebuild and remove the environments and workspaces of this host."""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fray.cli import output
from fray.cli.app import App, Subcommands, subcommand
from fray_layouts.units import format_duration

if TYPE_CHECKING:
    from fray_agents.environments.cache import CacheEntry
    from fray_coordinator.core import Core
    from fray_layouts.pool_file import WarmEnvironment

_SHOWN_DIGITS = 12
"""Digits of a key that are shown to people."""

_NO_PACKAGES = "{} names no packages; name some with --with"


@click.group(cls=Subcommands, name="env")
def command() -> None:
    """List, prebuild and remove the environments and workspaces that this user's agents keep on this host.

    This needs no cluster. Every agent of this user on this host uses what you build here.

    With --pool: list, add and remove the environments that a pool names. Each agent that joins the pool afterwards
    builds them before it claims jobs.
    """


_subcommand = partial(subcommand, command)


_pool_option = click.option("--pool", help="Pool whose agents build it, instead of this host.")


@_subcommand("ls")
@_pool_option
def _list(app: App, pool: str | None) -> None:
    """List environments and workspaces, in the order of their last use."""
    if pool is not None:
        _show_named(app, pool)
        return
    from fray_agents.environments.cache import host_cache

    _show(app, host_cache().entries())


@_subcommand("clear")
@_pool_option
def _clear(app: App, pool: str | None) -> None:
    """Remove all environments and workspaces that no job uses now. They are built again when a job needs them."""
    if pool is not None:
        from fray_coordinator.jobs.pools import clear_environments

        app.run(lambda core: clear_environments(core, pool))
        _show_named(app, pool)
        return
    from fray_agents.environments.cache import host_cache

    _show(app, asyncio.run(host_cache().trim(0)))


@_subcommand("warm")
@click.option("--workspace", metavar="DIR", help="The project; by default the one around the current directory.")
@click.option("--extra", multiple=True, metavar="NAME", help="An extra of the project, to install with its packages.")
@click.option("--group", multiple=True, metavar="NAME", help="A dependency group of the project, to install too.")
@click.option("--with", multiple=True, metavar="PACKAGE", help="A requirement to install on top.")
@click.option("--image", default="", help="Container image to pull; needs --pool.")
@_pool_option
def _warm(
    app: App,
    workspace: str | None,
    extra: tuple[str, ...],
    group: tuple[str, ...],
    image: str,
    pool: str | None,
    **options: Any,
) -> None:
    """Build the environment of a project before its jobs need it."""
    from fray.workspace.choice import AUTO, named_workspace
    from fray_layouts.pool_file import WarmEnvironment

    if image and pool is None:
        raise click.UsageError("--image is for the agents of a pool; give --pool POOL too")
    choice = named_workspace(workspace or AUTO, Path())
    folder = choice.find() if choice is not None else None
    assert folder is not None, "a project that is required was found"
    if pool is not None:
        written = WarmEnvironment(
            workspace=str(folder),
            extras=list(extra),
            groups=list(group),
            pip_packages=list(options["with"]),
            docker_image=image,
        )
        app.run(lambda core: _add_to_pool(core, pool, written), create=True)
        _show_named(app, pool)
        return
    began = time.monotonic()
    python = asyncio.run(_build_environment(folder, extra, group, options["with"]))
    seconds = format_duration(time.monotonic() - began)
    app.show({"workspace": str(folder), "python": python}, lambda: output.echo(f"{python} is ready after {seconds}"))


async def _add_to_pool(core: Core, pool: str, written: WarmEnvironment) -> None:
    """Store the workspace, and add the environment of its jobs to the pool."""
    from fray.cli.options import print_stored
    from fray.machine_pools import store_environment
    from fray_coordinator.jobs.pools import add_environment
    from fray_layouts.spec import needs_environment
    from fray_layouts.spec_parsing import check_name

    check_name("pool", pool)  # before anything is uploaded
    environment = await store_environment(core, written, Path(), print_stored)
    if not needs_environment(environment) and not environment.docker_image:
        raise click.UsageError(_NO_PACKAGES.format(written.workspace))
    await add_environment(core, pool, environment)


def _show_named(app: App, pool: str) -> None:
    """Show the environments that the pool names."""
    from msgspec import to_builtins

    from fray_coordinator.jobs.pools import pool_environments

    named = app.run(lambda core: pool_environments(core, pool))
    rows = [
        (
            each.workspace.blob.rpartition("/")[2][:_SHOWN_DIGITS] if each.workspace is not None else "",
            " ".join(each.extras),
            " ".join(each.groups),
            " ".join(each.pip_packages),
            each.python,
            each.docker_image,
        )
        for each in named
    ]
    titles = ("WORKSPACE", "EXTRAS", "GROUPS", "WITH", "PYTHON", "IMAGE")
    empty = f"the pool {pool} names no environment"
    app.show([to_builtins(each) for each in named], lambda: output.print_table(titles, rows, empty))


async def _build_environment(
    folder: Path, extras: tuple[str, ...], groups: tuple[str, ...], requirements: tuple[str, ...]
) -> str:
    """Build the environment of the workspace as agents do; return the path of its interpreter."""
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
        workspace=workspace,
        extras=list(extras),
        groups=list(groups),
        pip_packages=list(requirements),
        python=project.python,
    )
    spec = JobSpec(name="warm", entrypoint=EntrypointSpec(command=["python"]), environment=environment)
    if not needs_interpreter(spec):
        raise click.UsageError(_NO_PACKAGES.format(folder))
    with tempfile.TemporaryDirectory() as unpacked:
        unpack(archive.data, Path(unpacked))
        async with AsyncExitStack() as held:
            found = await hold_environment(host_cache(), spec, Path(unpacked), held, None, _ProgressPrinter())
    return found.python


class _ProgressPrinter:
    """Prints progress on stderr, at most once a second."""

    def __init__(self) -> None:
        self._printed_at = 0.0

    def __call__(self, text: str) -> None:
        if time.monotonic() - self._printed_at > 1.0:
            self._printed_at = time.monotonic()
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
    columns = ("KIND", "KEY", "SIZE", "USED", "PACKAGES")
    app.show(data, lambda: output.print_table(columns, rows, "there are no environments or workspaces on this host"))
