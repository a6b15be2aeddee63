"""What all commands share: --root, --json, --debug, and opening the cluster."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fray.cli import output

if TYPE_CHECKING:
    from fray_coordinator.core import Core

T = TypeVar("T")
DEBUG_KEY = "fray.debug"
"""The key in click's context under which --debug is stored."""


class VariableOption(click.Option):
    """An option that a variable may give; click itself would take the variable's text literally."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        from fray_coordinator.variables import read_variable

        return read_variable(str(self.envvar)) or None


@dataclass(frozen=True)
class App:
    """The common options of one run of a command, and the cluster that they name."""

    given_root: str | None
    json: bool

    @property
    def root(self) -> str:
        """The cluster's root URL. Raises UsageError (exit code 2) if no root is given."""
        if not self.given_root:
            raise click.UsageError("no cluster is given; give --root ROOT or set FRAY_CLUSTER_SPEC")
        if self.given_root == "local":
            raise click.UsageError('the cluster "local" lives inside one program; give --root ROOT')
        _refuse_other_schedulers(self.given_root)
        return self.given_root

    def run(self, work: Callable[[Core], Awaitable[T]], create: bool = False) -> T:
        """Run `work` on the open cluster and return its result.

        create: create the cluster if there is none under the root, instead of refusing.
        """
        return asyncio.run(self._run(work, create))

    async def _run(self, work: Callable[[Core], Awaitable[T]], create: bool) -> T:
        from fray_coordinator.core import open_core

        core = await open_core(self.root, create=create)
        try:
            _warn_of_full_disk(core.root)
            return await work(core)
        finally:
            await core.store.close()

    def warn(self, problems: dict[str, str]) -> None:
        """Print on stderr which records were left out because they cannot be read."""
        for problem in problems.values():
            output.echo(f"fray: left out: {problem}", err=True)

    def show(self, data: Any, text: Callable[[], None]) -> None:
        """Print `data` as JSON if --json was given; otherwise call `text`, which prints for people."""
        if self.json:
            output.print_json(data)
        else:
            text()


def _refuse_other_schedulers(root: str) -> None:
    from fray.cluster.iris.connection import is_iris
    from fray.cluster.ray.connection import is_ray

    if is_ray(root) or is_iris(root):
        raise click.UsageError(
            f"commands need a cluster in storage, and {root} is not one; submit to it from Python with "
            "current_client(), or give --root ROOT; agents of that cluster can run as jobs there"
        )


def _warn_of_full_disk(root: str) -> None:
    """Warn on stderr if the root's disk is full: then records cannot change, and jobs that have ended look running."""
    from fray_coordinator.store.disk_room import FULL_REMEDY, lack_of_room
    from fray_coordinator.store.opening import folder_of_root

    folder = folder_of_root(root)
    if folder is not None and (lack := lack_of_room(folder)):
        output.echo(f"fray: {lack}; {FULL_REMEDY}", err=True)


def as_command(function: Callable[..., Any]) -> click.Command:
    """Make a click command with the common options of a function whose first argument is an `App`.

    The command is named after the function's module.
    """

    @functools.wraps(function)
    @click.pass_context
    def run(ctx: click.Context, /, root: str | None, as_json: bool, debug: bool, **options: Any) -> Any:
        ctx.meta[DEBUG_KEY] = debug
        return function(App(root, as_json), **options)

    for option in reversed(_OPTIONS):
        run = option(run)
    name = function.__module__.rpartition(".")[2]
    return click.command(name)(run)


def subcommand(group: click.Group, name: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function whose first argument is an `App`, and add it to a group under `name`."""

    def add(function: Callable[..., Any]) -> click.Command:
        part = as_command(function)
        group.add_command(part, name)
        return part

    return add


_OPTIONS = [
    click.option(
        "--root",
        cls=VariableOption,
        envvar="FRAY_CLUSTER_SPEC",
        metavar="ROOT",
        help="The cluster's root; see fray --help.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts."),
    click.option("--debug", is_flag=True, help="Show the traceback of an error."),
]
