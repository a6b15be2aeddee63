"""`fray coordinate`: run the reconciler without an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray_layouts.escaping import one_line

if TYPE_CHECKING:
    from fray_coordinator.core import Core


@as_command
@click.option("--once", is_flag=True, help="Run one pass and return, even while another process is the reconciler.")
def command(app: App, once: bool) -> None:
    """Run the reconciler: admit jobs from the inbox, restart jobs of dead agents, repair indexes, remove old records.

    Agents do this too, besides their jobs. With --once, it takes several runs to declare a silent agent dead: its
    silence adds up between the runs.
    """
    problems = app.run(lambda core: _reconcile(core, once))
    app.show({"problems": problems}, lambda: _print_problems(problems))


def _print_problems(problems: dict[str, str]) -> None:
    for key, problem in problems.items():
        output.echo(f"{one_line(key)}: {problem}")
    output.echo(f"done, {len(problems)} problems" if problems else "done")


async def _reconcile(core: Core, once: bool) -> dict[str, str]:
    from fray_coordinator.reconcile.reconciler import Reconciler

    reconciler = Reconciler(core, f"{'once' if once else 'coordinator'}-{core.rng.token()}")
    await (reconciler.run_once() if once else reconciler.run())
    return reconciler.problems
