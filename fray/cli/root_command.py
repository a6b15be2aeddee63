"""The command `fray` itself: finds the module of a command, and prints errors in one line."""

import importlib
from typing import Any, NoReturn

import click

from fray.cli import output
from fray.cli.app import DEBUG_KEY
from fray.uncaught import shows_all_frames
from fray_layouts.errors import FrayError

_COMMANDS = {
    "up": "Create a cluster, with the pools of a file.",
    "down": "Remove all machines of the pools.",
    "run": "Submit a command and follow it to its end.",
    "submit": "Submit jobs from a JSON or YAML file.",
    "ps": "List jobs that wait or run.",
    "status": "Describe a job.",
    "logs": "Print what a job printed.",
    "result": "Print what a job returned.",
    "pull": "Fetch the output files of a job.",
    "ls": "List the files of a job.",
    "cat": "Print a file of a job.",
    "cp": "Copy files of a job to a folder or a URL.",
    "stop": "Stop jobs.",
    "retry": "Submit jobs again that have ended.",
    "agent": "Make this machine run jobs.",
    "agents": "List the agents.",
    "pool": "Show and set what machines the pools may have.",
    "machines": "List the machines that were made for pools.",
    "reserve": "Reserve hosts for the jobs of a namespace.",
    "reservations": "List, renew and release reservations.",
    "env": "List, build and remove this host's environments.",
    "actors": "List the actors.",
    "queue": "Inspect and change queues.",
    "drain": "Let agents finish their jobs and leave.",
    "scale": "Make and remove the machines of pools, without an agent.",
    "coordinate": "Run the reconciler, without an agent.",
    "rotate": "Replace the key that calls are authenticated with.",
    "init": "Create a cluster with your own settings.",
    "fsck": "Find inconsistent records, and repair them.",
    "doctor": "Check whether a storage root can hold a cluster.",
    "cost": "Estimate what storage requests and machines cost.",
}


EXIT_INTERRUPTED = 130
"""The exit code after Ctrl-C, as of a shell: 128 and the number of SIGINT."""


class OneLineError(click.ClickException):
    """An error that is printed as one line on stderr; the exit code is 1."""

    def show(self, file: Any = None) -> None:
        output.echo(f"fray: {self.format_message()}", err=True)


class CommandGroup(click.Group):
    """The group of all commands. It imports a command when it is used, and prints each error in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"fray.cli.commands.{cmd_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in _COMMANDS and not word.startswith("-"):
            from fray.cli.other_words import meaning  # costs some milliseconds, and few mistype

            ctx.fail(f"there is no command {word!r}; {meaning(word, _COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
        except Exception as error:
            if ctx.meta.get(DEBUG_KEY) or shows_all_frames():
                raise
            _fail(error)


def _fail(error: Exception) -> NoReturn:
    if isinstance(error, FrayError | TimeoutError):
        raise OneLineError(str(error)) from None
    kind = type(error).__name__
    raise OneLineError(
        f"unexpected {kind}: {error}; run the command again with --debug and report the traceback"
    ) from None


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="fray-cluster", prog_name="fray")
def cli() -> None:
    """Run jobs on machines that share a storage bucket.

    ROOT is gs://bucket/prefix, s3://bucket/prefix, or a directory; give it with --root or in FRAY_CLUSTER_SPEC.
    """
