"""The command `fray`. Each command is a module of its own, imported when it is used."""

from fray.cli.root_command import cli


def main() -> None:
    """The entry point."""
    cli(prog_name="fray")


__all__ = ["cli", "main"]
