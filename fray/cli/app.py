"""What all commands share: --root, --json, --debug, opening the cluster, and the log of an agent on stderr."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import shlex
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fray.cli import output
from fray_layouts.escaping import escaped, escaped_json

if TYPE_CHECKING:
    from fray_coordinator.core import Core


T = TypeVar("T")
DEBUG_KEY = "fray.debug"
"""The key in click's context under which --debug is stored."""


class VariableOption(click.Option):
    """An option that a variable may give; click itself would take the variable's text literally."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        from fray_runtime.variables import read_variable

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
        from fray.cluster.backends import is_private_root

        if is_private_root(self.given_root):
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
    from fray.cluster.backends import backend_of

    if backend_of(root) is not None:
        raise click.UsageError(
            f"commands need a cluster in storage, and {root} is not one; submit to it from Python with "
            "current_client(), or give --root ROOT; agents of that cluster can run as jobs there"
        )


def _warn_of_full_disk(root: str) -> None:
    """Warn on stderr if the root's disk is full: then records cannot change, and jobs that have ended look running."""
    from fray_coordinator.store.file_tree import FULL_REMEDY, lack_of_room
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
    return click.command(name, cls=_Command)(run)


class _Command(click.Command):
    """A command of `fray`. One that takes a job's words has no options after the first of them, unless `--` is there.

    An option after the first word could be the job's own or one of `fray`, so it is taken for neither.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = next((part.name for part in self.params if part.type is click.UNPROCESSED), None)
        if words is None:
            return super().parse_args(ctx, args)
        ctx.allow_interspersed_args = False
        given = list(args)
        left = super().parse_args(ctx, args)
        _refuse_unclear_option(given, len(ctx.params[words] or ()))
        return left


def _refuse_unclear_option(given: list[str], count: int) -> None:
    """Raise UsageError if one of the last `count` arguments, a job's words without `--`, is an option."""
    before, words = given[: len(given) - count], given[len(given) - count :]
    option = next((word for word in words if word.startswith("-") and word != "-"), None)
    if option is not None and before[-1:] != ["--"]:
        options = "OPTIONS " if before else ""
        named = f", because {option} could be an option of either" if option != "--" else ""
        command = shlex.join(word for word in words if word != "--")
        raise click.UsageError(f"put -- before the command{named}: fray run {options}-- {command}")


class Subcommands(click.Group):
    """The group of a command that has subcommands, such as `fray pool`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word, group = args[0], self.name or ""
        if word not in self.commands and not word.startswith("-"):
            from fray.cli.other_words import meaning

            ctx.fail(f"there is no command '{group} {word}'; {meaning(word, self.commands, group)}")
        return super().resolve_command(ctx, args)


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


FORMATS = ("text", "json")


class MessageFormatter(logging.Formatter):
    """A warning as commands print their own messages: one line after "fray: "."""

    def format(self, record: logging.LogRecord) -> str:
        return f"fray: {escaped(super().format(record))}"


class _TextFormatter(logging.Formatter):
    """One line for each record, with the time in UTC; a traceback follows on lines of its own."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record))


class _JsonFormatter(_TextFormatter):
    """One JSON object for each record: `time`, `level`, `message`, and `traceback` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {"time": self.formatTime(record), "level": record.levelname, "message": record.getMessage()}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return escaped_json(json.dumps(fields, ensure_ascii=False))


def log_to_stderr(form: str) -> None:
    """Log to stderr in one of `FORMATS`; other libraries log only warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("fray").setLevel(logging.INFO)
