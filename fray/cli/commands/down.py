"""`fray down`: let all machines of the pools go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fray.cli import output
from fray.cli.app import App, as_command

if TYPE_CHECKING:
    from fray_coordinator.core import Core

_POLL_SECONDS = 2.0


@as_command
@click.argument("at", required=False, metavar="[ROOT]")
@click.option("--wait", type=float, default=0.0, metavar="SECONDS", help="Wait so long for the machines to be gone.")
def command(app: App, at: str | None, wait: float) -> None:
    """Let all machines of the pools of ROOT go, and say what is left.

    No pool may have machines any more, until it is set again, by `fray up` for one. Their agents finish the jobs that
    they have and take no more; the scaler deletes the machines. Nothing is deleted from the bucket, and agents that
    people started go on.
    """
    app = App(at or app.given_root, app.json)
    problems: dict[str, str] = {}
    data = app.run(lambda core: _down(core, wait, problems))
    app.warn(problems)

    def text() -> None:
        for pool in data["pools"]:
            output.echo(f"pool {pool} may have no machines any more")
        for agent in data["draining"]:
            output.echo(f"agent {agent} finishes its jobs and leaves")
        left = data["machines"]
        count = f"{len(left)} machine{'s are' if len(left) > 1 else ' is'} left"
        output.echo(f"{count}: {', '.join(left)}" if left else "no machine is left")
        if left and data["unattended"]:
            output.echo("no scaler has looked at them lately, so nobody deletes them")
        if data["agents"]:
            output.echo(f"agents that people started go on: {', '.join(data['agents'])}; see `fray drain`")

    app.show(data, text)


async def _down(core: Core, wait: float, problems: dict[str, str]) -> dict[str, Any]:
    from fray_coordinator.jobs import mailbox
    from fray_coordinator.jobs.lookup import live_agents, read_agents
    from fray_coordinator.jobs.machines import read_scaler
    from fray_coordinator.jobs.why_machines import UNATTENDED_SECONDS

    pools = await _close_pools(core, problems)
    live = live_agents(await read_agents(core, problems), core.now())
    draining = [agent.id for agent in live if agent.machine]
    for agent in draining:
        await mailbox.drain(core, agent)
    until = core.clock.boottime() + wait
    while (left := await _machines_left(core, problems)) and core.clock.boottime() < until:
        await core.clock.sleep(_POLL_SECONDS)
    scaler = await read_scaler(core)
    return {
        "pools": pools,
        "draining": draining,
        "machines": left,
        "agents": [agent.id for agent in live if not agent.machine],
        "unattended": scaler is None or core.now() - scaler.looked_at > UNATTENDED_SECONDS,
    }


async def _close_pools(core: Core, problems: dict[str, str]) -> list[str]:
    """Let no pool have machines; the names of those that could."""
    from msgspec.structs import replace

    from fray_coordinator.jobs.machines import change_pool, read_pools
    from fray_layouts.records import AgentPoolRecord

    def closed(record: AgentPoolRecord) -> AgentPoolRecord | None:
        spec = record.provisioning
        return replace(record, provisioning=replace(spec, min=0, max=0)) if spec is not None and spec.max else None

    found = [name for name, record in (await read_pools(core, problems)).items() if record.provisioning is not None]
    for name in found:
        await change_pool(core, name, closed)
    return found


async def _machines_left(core: Core, problems: dict[str, str]) -> list[str]:
    from fray_coordinator.jobs.machines import read_machines
    from fray_layouts.states import MachineState

    machines = [machine.record for machine in await read_machines(core, problems)]
    return [f"{machine.pool}/{machine.name}" for machine in machines if machine.state != MachineState.GONE]
