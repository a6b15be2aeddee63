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
    problems = app.run(_once if once else _until_stopped)
    app.show({"problems": problems}, lambda: _print_problems(problems))


def _print_problems(problems: dict[str, str]) -> None:
    for key, problem in problems.items():
        output.echo(f"{one_line(key)}: {problem}")
    output.echo(f"done, {len(problems)} problems" if problems else "done")


async def _once(core: Core) -> dict[str, str]:
    from fray_coordinator.reconcile.reconciler import Reconciler

    reconciler = Reconciler(core, f"once-{core.rng.token()}")
    await reconciler.run_once()
    return reconciler.problems


async def _until_stopped(core: Core) -> dict[str, str]:
    from fray_coordinator.reconcile.reconciler import Reconciler

    reconciler = Reconciler(core, f"coordinator-{core.rng.token()}")
    try:
        while True:
            await reconciler.try_pass()
            until = core.clock.boottime() + core.jittered(core.settings.pass_interval)
            while core.clock.boottime() < until:
                await reconciler.schedule_placements()
                await core.clock.sleep(core.settings.poll_interval)
    finally:
        await reconciler.resign()
