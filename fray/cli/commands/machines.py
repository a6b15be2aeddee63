"""`fray machines`: list the machines that were made for pools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray.cli.output import format_dollars
from fray_layouts.errors import InvalidInput
from fray_layouts.states import MachineState
from fray_layouts.units import format_duration

if TYPE_CHECKING:
    from fray_coordinator.core import Core
    from fray_layouts.records import MachineRecord

_COLUMNS = ("MACHINE", "POOL", "STATE", "TYPE", "ZONE", "HOSTS", "AGE", "AN HOUR", "SO FAR", "REASON")


@as_command
@click.argument("machine", required=False)
@click.option("--pool", default="", help="Only machines of this pool.")
@click.option("--delete", is_flag=True, help="Delete MACHINE, whose record was missing, and which nothing needs.")
@click.option("--all", "-a", "everything", is_flag=True, help="Also machines that are gone.")
def command(app: App, machine: str | None, pool: str, delete: bool, everything: bool) -> None:
    """List machines, what they cost and why they exist; for one MACHINE also the boot logs of its hosts."""
    if delete:
        if machine is None:
            raise click.UsageError("--delete needs the name of a machine")
        app.run(lambda core: _delete(core, machine, pool))
    if machine is not None:
        record, logs, now = app.run(lambda core: _find(core, machine, pool))
        data = {**_json(record, now), "boot_logs": logs}
        app.show(data, lambda: output.print_pairs(_described(record, logs, now)))
        return
    problems: dict[str, str] = {}
    found, now = app.run(lambda core: _list(core, pool, problems))
    app.warn(problems)
    shown = [each for each in found if everything or each.state != MachineState.GONE]
    rows = [_row(each, now) for each in shown]
    empty = (
        "there is no such machine"
        if everything or pool
        else "there is no machine; --all also lists machines that are gone"
    )
    app.show([_json(each, now) for each in shown], lambda: output.print_table(_COLUMNS, rows, empty))


async def _list(core: Core, pool: str, problems: dict[str, str]) -> tuple[list[MachineRecord], float]:
    from fray_coordinator.jobs.pools import read_machines

    return [machine.record for machine in await read_machines(core, problems, pool)], core.now()


async def _find(core: Core, name: str, pool: str) -> tuple[MachineRecord, dict[int, str], float]:
    """The machine, and the boot log of each of its hosts that stored one."""
    found, now = await _list(core, pool, {})
    named = [machine for machine in found if machine.name == name] or [
        machine for machine in found if machine.name.startswith(name)
    ]
    if len(named) != 1:
        remedy = (
            f"{len(named)} machines begin with that; give more of the name"
            if named
            else "`fray machines --all` lists all machines"
        )
        raise InvalidInput("machine", name, remedy)
    return named[0], await _boot_logs(core, named[0]), now


async def _delete(core: Core, name: str, pool: str) -> None:
    """Have the scaler delete a stray machine."""
    from fray_coordinator.protocol.scaling.machines import given_up_stray
    from fray_layouts.object_keys import MachineKeys
    from fray_layouts.records import MachineRecord

    machine, _, _ = await _find(core, name, pool)
    key = MachineKeys.key(machine.pool, machine.name)
    if not (await core.records.change(key, MachineRecord, given_up_stray)).wrote:
        remedy = "only a machine whose state is stray is deleted by hand; the pool's settings decide about all others"
        raise InvalidInput("machine", machine.name, remedy)


async def _boot_logs(core: Core, machine: MachineRecord) -> dict[int, str]:
    from fray_layouts.object_keys import MachineKeys

    logs: dict[int, str] = {}
    for host in range(machine.hosts):
        stored = await core.store.get(MachineKeys.boot_log(machine.pool, machine.name, host))
        if stored is not None:
            logs[host] = stored.data.decode(errors="replace")
    return logs


def _json(machine: MachineRecord, now: float) -> dict[str, Any]:
    from fray.cli.job_view import record_json
    from fray_coordinator.protocol.scaling.shares import cost_so_far

    return {**record_json(machine), "cost_so_far": cost_so_far(machine, now)}


def _row(machine: MachineRecord, now: float) -> tuple[str, ...]:
    from fray_coordinator.protocol.scaling.shares import cost_so_far

    return (
        machine.name,
        machine.pool,
        machine.state,
        machine.machine_type + ", spot" * machine.spot,
        machine.zone,
        str(machine.hosts),
        format_duration((machine.ended_at or now) - machine.wanted_at),
        format_dollars(machine.hourly_cost),
        format_dollars(cost_so_far(machine, now)),
        machine.error or machine.reason,
    )


def _described(machine: MachineRecord, logs: dict[int, str], now: float) -> list[tuple[str, str]]:
    from fray.cli.job_view import format_time
    from fray_coordinator.protocol.scaling.shares import cost_so_far

    pairs = [
        ("machine", machine.name),
        ("pool", machine.pool),
        ("state", machine.state),
        ("provider", machine.provider),
        ("type", machine.machine_type + ", spot" * machine.spot),
        ("zone", machine.zone),
        ("hosts", str(machine.hosts)),
        ("reason", machine.reason),
        ("error", machine.error),
        ("operation", machine.operation),
        ("made with", machine.batch if machine.batch != machine.name else ""),
        ("an hour", format_dollars(machine.hourly_cost)),
        ("so far", format_dollars(cost_so_far(machine, now))),
        ("wanted", format_time(machine.wanted_at, now)),
        ("created", format_time(machine.created_at, now)),
        ("up", format_time(machine.up_at, now)),
        ("idle", format_time(machine.idle_since, now)),
        ("not heard of", format_time(machine.unseen_since, now)),
        ("unfit", format_time(machine.unfit_since, now)),
        ("drained", format_time(machine.draining_at, now)),
        ("gone", format_time(machine.ended_at, now)),
        *((f"host {host} said", log.rstrip()) for host, log in logs.items()),
    ]
    return [(label, text) for label, text in pairs if text]
