"""`fray drain`: let agents finish their jobs and leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fray.cli import output
from fray.cli.app import App, as_command

if TYPE_CHECKING:
    from fray_coordinator.core import Core


@as_command
@click.argument("agents", nargs=-1, required=True, metavar="AGENT...")
def command(app: App, agents: tuple[str, ...]) -> None:
    """Ask agents to finish their jobs, take no more, and leave. This does not wait until they have left."""
    asked = app.run(lambda core: _drain(core, agents))
    app.show([{"id": agent} for agent in asked], lambda: output.print_table(("DRAINING",), [(a,) for a in asked]))


async def _drain(core: Core, texts: tuple[str, ...]) -> list[str]:
    from fray_coordinator.concurrency import map_concurrently
    from fray_coordinator.jobs import notifications

    return await map_concurrently(texts, lambda agent: notifications.drain(core, agent))
