"""`fray scale`: make and remove the machines of pools, without an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray_layouts.escaping import one_line

if TYPE_CHECKING:
    from fray_coordinator.core import Core
    from fray_coordinator.protocol.scaling.provisioning import ScalingScope
    from fray_layouts.records import PoolScaling


@as_command
@click.argument("named", nargs=-1, metavar="[POOL]...")
@click.option("--once", is_flag=True, help="Scale the pools once and return, even while another process scales.")
def command(app: App, named: tuple[str, ...], once: bool) -> None:
    """Make and remove the machines of each POOL: as many as the waiting work needs, within the bounds of the pool.

    Without names it scales the pools of the file fray.yaml that is here. A pool that you name is scaled as its record
    in the cluster says: with your rights at its cloud, and by running its commands.

    Agents with --provision and agents on machines do this too. --once is for cron or a cloud's
    scheduler; each run continues where the last one ended.
    """
    from msgspec import to_builtins

    scope = _scope(app.root, named)
    pools = app.run(lambda core: _scale(core, scope, once))
    app.show({"pools": {name: to_builtins(pool) for name, pool in pools.items()}}, lambda: _print(pools))


def _print(pools: dict[str, PoolScaling]) -> None:
    from fray_coordinator.jobs.why_machines import problem_of

    rows = [
        (name, str(pool.machines), str(pool.wanted), pool.limit or "-", one_line(problem_of(pool)) or "-")
        for name, pool in sorted(pools.items())
    ]
    output.print_table(("POOL", "MACHINES", "WANTED", "LIMIT", "PROBLEM"), rows)


def _scope(root: str, named: tuple[str, ...]) -> ScalingScope:
    """The pools to scale. Raises InvalidInput: there are neither names nor a file."""
    from fray.machine_pools import described_pools
    from fray_coordinator.protocol.scaling.provisioning import ScalingScope
    from fray_layouts.errors import InvalidInput
    from fray_layouts.spec_parsing import check_name

    for name in named:
        check_name("POOL", name)
    if named:
        return ScalingScope(named=frozenset(named))
    scope = described_pools(root)
    if not scope.pools:
        remedy = "name the pools to scale; only where a file fray.yaml is, its pools are scaled without names"
        raise InvalidInput("POOL", "", remedy)
    return scope


async def _scale(core: Core, scope: ScalingScope, once: bool) -> dict[str, PoolScaling]:
    from fray_agents.provisioning.scaler import Scaler

    scaler = Scaler(core, f"{'once' if once else 'scale'}-{core.rng.token()}", scope)
    if once:
        try:
            return await scaler.run_once()
        finally:
            await scaler.close()
    await scaler.run()
    return {}
