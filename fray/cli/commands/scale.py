"""`fray scale`: make and remove the machines of pools, without an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray_layouts.escaping import one_line

if TYPE_CHECKING:
    from fray_coordinator.core import Core
    from fray_layouts.records import PoolScaling


@as_command
@click.option("--once", is_flag=True, help="Scale all pools once and return, even while another process scales.")
def command(app: App, once: bool) -> None:
    """Make and remove the machines of pools: as many as the waiting work needs, within the bounds of each pool.

    Agents with --provision and agents on machines do this too. --once is for cron or a cloud's scheduler; each run
    continues where the last one ended.
    """
    from msgspec import to_builtins

    pools = app.run(lambda core: _scale(core, once))
    app.show({"pools": {name: to_builtins(pool) for name, pool in pools.items()}}, lambda: _print(pools))


def _print(pools: dict[str, PoolScaling]) -> None:
    from fray_coordinator.jobs.why_machines import problem_of

    rows = [
        (name, str(pool.machines), str(pool.wanted), pool.limit or "-", one_line(problem_of(pool)) or "-")
        for name, pool in sorted(pools.items())
    ]
    output.print_table(("POOL", "MACHINES", "WANTED", "LIMIT", "PROBLEM"), rows)


async def _scale(core: Core, once: bool) -> dict[str, PoolScaling]:
    from fray_agents.provisioning.scaler import Scaler

    scaler = Scaler(core, f"{'once' if once else 'scale'}-{core.rng.token()}")
    if once:
        try:
            return await scaler.run_once()
        finally:
            await scaler.close()
    await scaler.run()
    return {}
