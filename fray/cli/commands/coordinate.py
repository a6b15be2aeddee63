"""`fray coordinate`: the coordinator's pass without an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray_layouts.escaping import one_line

if TYPE_CHECKING:
    from fray_coordinator.core import Core


@as_command
@click.option("--once", is_flag=True, help="One pass, also while another process holds the pass's lease.")
def command(app: App, once: bool) -> None:
    """Admit the inbox, bury dead agents, repair indexes and remove what is old, as any agent does besides its work.

    With --once, several runs are needed to declare a silent agent dead: its silence adds up between them.
    """
    problems = app.run(_once if once else _for_ever)
    app.show({"problems": problems}, lambda: _tell(problems))


def _tell(problems: dict[str, str]) -> None:
    for key, problem in problems.items():
        output.echo(f"{one_line(key)}: {problem}")
    output.echo(f"done, {len(problems)} problems" if problems else "done")


async def _once(core: Core) -> dict[str, str]:
    from fray_coordinator.reconcile.reconciler import Reconciler

    turn = Reconciler(core, f"once-{core.rng.token()}")
    await turn.once()
    return turn.problems


async def _for_ever(core: Core) -> dict[str, str]:
    from fray_coordinator.reconcile.reconciler import Reconciler

    turn = Reconciler(core, f"coordinator-{core.rng.token()}")
    try:
        while True:
            await turn.turn()
            await core.clock.sleep(core.jittered(core.settings.pass_interval))
    finally:
        await turn.resign()
