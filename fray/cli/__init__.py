"""The command line, `fray`; for people, and with --json for scripts.

`app` is what all commands share, `root_command` finds the module of a command in `commands/` and prints errors in one
line, `output` prints. `job_view`, `log_lines` and `cost_model` make texts of jobs, logs and costs. Modules import the
rest of Fray within functions: `fray --help` is quick.
"""

from fray.cli.root_command import cli


def main() -> None:
    cli(prog_name="fray")


__all__ = ["cli", "main"]
