"""`fray down`: remove all machines of the pools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray.cli.options import DurationType
from fray_layouts.escaping import one_line

if TYPE_CHECKING:
    from fray_coordinator.core import Core
    from fray_coordinator.protocol.scaling.provisioning import ScalingScope


@as_command
@click.argument("at", required=False, metavar="[ROOT]")
@click.option(
    "--wait",
    type=DurationType(),
    default=0.0,
    metavar="DURATION",
    help="Wait up to so long until the machines are gone, such as 90 seconds or 5m; 0 by default.",
)
def command(app: App, at: str | None, wait: float) -> None:
    """Remove all machines of the pools of ROOT, and say what is left.

    This sets the bounds of all pools to no machines, until you set them again, for example with `fray up`. The agents
    of the machines finish their jobs and take no more. Then the machines are deleted: those of the pools in the file
    fray.yaml that is here by this command, others by processes that scale them. Nothing is deleted from the bucket, and
    agents that people started keep running.
    """
    app = App(at or app.given_root, app.json)
    problems: dict[str, str] = {}
    data = app.run(lambda core: _down(core, wait, problems))
    app.warn(problems)

    def text() -> None:
        for pool in data["pools"]:
            output.echo(f"pool {pool} may have no machines now")
        for agent in data["draining"]:
            output.echo(f"agent {agent} finishes its jobs and leaves")
        left = data["machines"]
        count = f"{len(left)} machine{'s are' if len(left) > 1 else ' is'} left"
        output.echo(f"{count}: {', '.join(left)}" if left else "no machine is left")
        for pool, problem in data["problems"].items():
            output.echo(f"pool {pool} cannot be scaled: {one_line(problem)}")
        if left and data["unattended"]:
            output.echo("no other process removes them; `fray down --wait 600` waits up to 600 s until they are gone")
        for pool in data["not_scaled"]:
            output.echo(f"pool {pool} is in no fray.yaml here, so `fray scale {pool}` removes its machines")
        if data["agents"]:
            output.echo(f"agents that people started keep running: {', '.join(data['agents'])}; see `fray drain`")

    app.show(data, text)


async def _down(core: Core, wait: float, problems: dict[str, str]) -> dict[str, Any]:
    from fray.machine_pools import described_pools
    from fray_coordinator.jobs import notifications
    from fray_coordinator.jobs.lookup import live_agents, read_agents
    from fray_coordinator.jobs.pools import read_scaler

    pools = await _close_pools(core, problems)
    live = live_agents(await read_agents(core, problems), core.now())
    draining = [agent.id for agent in live if agent.machine]
    for agent in draining:
        await notifications.drain(core, agent)
    scope = described_pools(core.root)
    left, scaled = await _delete_machines(core, scope, wait, problems)
    scaler = await read_scaler(core)
    told = {pool: scaling.problem for pool, scaling in scaler.pools.items() if scaling.problem} if scaler else {}
    return {
        "pools": pools,
        "draining": draining,
        "machines": left,
        "not_scaled": sorted({name.partition("/")[0] for name in left} - scope.pools),
        "agents": [agent.id for agent in live if not agent.machine],
        "problems": told if left else {},
        "unattended": scaled,
    }


async def _delete_machines(
    core: Core, scope: ScalingScope, wait: float, problems: dict[str, str]
) -> tuple[list[str], bool]:
    """Scale the pools of the scope, unless another process does, until no machine is left.

    Returns the machines that are left, and whether this process scaled.
    """
    from fray_agents.provisioning.scaler import Scaler

    until, scaled = core.clock.boottime() + wait, False
    scaler = Scaler(core, f"down-{core.rng.token()}", scope)
    try:
        left = await _machines_left(core, problems)
        while left:
            scaled = bool(scope.pools) and await scaler.run_if_elected()
            left = await _machines_left(core, problems)
            if not left or (rest := until - core.clock.boottime()) <= 0:
                break
            await core.clock.sleep(min(core.settings.pass_interval, rest))
    finally:
        await scaler.resign()
        await scaler.close()
    return left, scaled


async def _close_pools(core: Core, problems: dict[str, str]) -> list[str]:
    """Set the bounds of all pools to no machines; return the names of the pools that have bounds."""
    from msgspec.structs import replace

    from fray_coordinator.jobs.pools import change_pool, read_pools
    from fray_layouts.records import AgentPoolRecord

    def closed(record: AgentPoolRecord) -> AgentPoolRecord | None:
        spec = record.provisioning
        return replace(record, provisioning=replace(spec, min=0, max=0)) if spec is not None and spec.max else None

    found = [name for name, record in (await read_pools(core, problems)).items() if record.provisioning is not None]
    for name in found:
        await change_pool(core, name, closed)
    return found


async def _machines_left(core: Core, problems: dict[str, str]) -> list[str]:
    from fray_coordinator.jobs.pools import read_machines
    from fray_layouts.states import MachineState

    machines = [machine.record for machine in await read_machines(core, problems)]
    return [f"{machine.pool}/{machine.name}" for machine in machines if machine.state != MachineState.GONE]
