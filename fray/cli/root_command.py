"""The group of all commands, and what becomes of errors."""

from __future__ import annotations

import importlib
from typing import Any, NoReturn

import click

from fray.cli import output
from fray.cli.app import DEBUG
from fray_layouts.errors import FrayError

_COMMANDS = {
    "run": "Submit a command and follow it to its end.",
    "submit": "Submit jobs from a JSON or YAML file.",
    "ps": "List jobs that wait or run.",
    "status": "Tell everything about a job.",
    "logs": "Print what a job printed.",
    "result": "Print what a job returned.",
    "stop": "Stop jobs.",
    "agent": "Make this machine run jobs.",
    "agents": "List the agents.",
    "actors": "List the actors.",
    "queue": "Look at queues, and into them.",
    "drain": "Let agents finish what they have and leave.",
    "coordinate": "Run the coordinator's pass without an agent.",
    "rotate": "Replace the key that calls are authenticated with.",
    "init": "Create a cluster with settings of your own.",
    "fsck": "Look for inconsistencies, and repair them.",
    "doctor": "Check that a storage root can carry a cluster.",
    "cost": "Estimate what the storage requests cost.",
}


class Failed(click.ClickException):
    """One clear line on stderr and exit code 1."""

    def show(self, file: Any = None) -> None:
        output.echo(f"fray: {self.format_message()}", err=True)


class CommandGroup(click.Group):
    """Imports a command when it is asked for, and turns errors into one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"fray.cli.commands.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if ctx.meta.get(DEBUG):
                raise
            _fail(error)


def _fail(error: Exception) -> NoReturn:
    if isinstance(error, FrayError | TimeoutError):
        raise Failed(str(error)) from None
    kind = type(error).__name__
    raise Failed(f"unexpected {kind}: {error}; run it again with --debug and report the traceback") from None


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="fray-cluster", prog_name="fray")
def cli() -> None:
    """Jobs on machines that meet in a storage bucket.

    ROOT is gs://bucket/prefix, s3://bucket/prefix, or a directory; give it with --root or in FRAY_CLUSTER_SPEC.
    """
