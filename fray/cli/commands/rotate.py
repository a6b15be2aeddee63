"""`fray rotate`: replace the key that calls are authenticated with."""

import click

from fray.cli import output
from fray.cli.app import App, as_command


@as_command
@click.option("--at-once", is_flag=True, help="Drop all other keys now, not only those that were replaced a day ago.")
def command(app: App, at_once: bool) -> None:
    """Make a new key with which callers and actors authenticate one another; drop keys that were replaced a day ago.

    You need not restart anything: a process that sees an unknown key reads the keys again.
    """
    from fray_coordinator.actors import rpc_secrets

    count = app.run(lambda core: rpc_secrets.rotate_keys(core, 0.0 if at_once else rpc_secrets.RETIRED_KEY_SECONDS))
    app.show(
        {"accepted": count}, lambda: output.echo(f"made a new key; earlier keys that are still accepted: {count - 1}")
    )
