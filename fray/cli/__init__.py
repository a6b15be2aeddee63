"""The command line, `fray`: text for people, and with --json for scripts.

`app` has what all commands share. `root_command` finds the module of a command in `commands/` and prints errors in one
line. `output` prints, log lines too. `job_view` and `cost_model` format jobs and costs. Modules import the rest of
Fray inside functions, so that `fray --help` is fast.
"""

import logging

from fray.cli.app import MessageFormatter
from fray.cli.root_command import cli


def main() -> None:
    if logging.lastResort is not None:  # the handler of warnings in commands that configure no log of their own
        logging.lastResort.setFormatter(MessageFormatter())
    cli(prog_name="fray")


__all__ = ["cli", "main"]
