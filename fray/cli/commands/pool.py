"""`fray pool`: show and set what machines the pools may have."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fray.cli import output
from fray.cli.app import App, Subcommands, subcommand
from fray.cli.options import DurationType

if TYPE_CHECKING:
    from fray_coordinator.core import Core
    from fray_layouts.records import AgentPoolRecord, MachineRecord, PoolScaling, ProvisioningSpec

_COLUMNS = ("POOL", "PROVIDER", "TYPE", "ZONES", "MIN", "MAX", "MACHINES", "WANTED", "AN HOUR", "LIMIT")


@click.group(cls=Subcommands, name="pool")
def command() -> None:
    """Show and set what machines the pools may have. Fray makes and removes the machines by itself.

    `fray up` sets all pools of a file at once.
    """


_subcommand = partial(subcommand, command)


@_subcommand("set")
@click.argument("pool")
@click.option("--provider", help="Provider of its machines: local, tpu, cloud_run or command.")
@click.option("--type", "machine_type", help="Type of its machines, such as v5litepod-16.")
@click.option("--zone", "zones", multiple=True, help="Zone for its machines, the preferred one first; may be repeated.")
@click.option(
    "--spot/--no-spot", default=None, help="Use spot machines, which are cheaper and may be taken away at any time."
)
@click.option("--min", type=int, help="Least number of machines.")
@click.option("--max", type=int, help="Greatest number of machines.")
@click.option(
    "--idle",
    "idle_seconds",
    type=DurationType(),
    metavar="DURATION",
    help="Remove a machine after so long without work, such as 600 seconds or 10m.",
)
@click.option(
    "--max-cost",
    "max_hourly_cost",
    type=float,
    metavar="DOLLARS",
    help="Most that all its machines together may cost an hour.",
)
@click.option(
    "--cost",
    "hourly_cost",
    type=float,
    metavar="DOLLARS",
    help="Cost of one machine an hour, if Fray knows no list price.",
)
@click.option("--label", "labels", multiple=True, help="Label of its agents, as name=value; may be repeated.")
@click.option("--cpu", type=float, help="Cores of each host.")
@click.option("--memory", help="Memory of each host, such as 8GB.")
@click.option("--project", help="Project of Google Cloud.")
@click.option("--image", help="Container image with Fray in it.")
@click.option("--package", help="URL of a wheel of Fray with its hash, which TPU hosts install: gs://...whl#sha256=...")
@click.option("--service-account", help="Service account of the machines.")
def _set(app: App, pool: str, **given: Any) -> None:
    """Set what machines POOL may have. Other values stay; a file for `fray up` can set more of them."""
    from fray.machine_pools import price_warnings, write_pool, written_pool
    from fray_coordinator.protocol.scaling.provisioning import account_of, account_of_machine
    from fray_layouts.pool_file import parse_pool

    async def change(core: Core) -> tuple[ProvisioningSpec, list[str]]:
        pools, machines, _ = await _read(core, {})
        before = pools[pool].provisioning if pool in pools else None
        fields = written_pool(before) if before is not None else {}
        spec = await write_pool(core, pool, parse_pool(_changed(fields, given)), Path())
        elsewhere = [each.name for each in machines.get(pool, ()) if account_of_machine(each) != account_of(spec)]
        return spec, elsewhere

    spec, others = app.run(change, create=True)
    if others:
        output.echo(
            f"fray: machines of the pool at another provider or project will be removed: {', '.join(others)}", err=True
        )
    for warning in price_warnings(spec):
        output.echo(f"fray: {warning}", err=True)
    _show(app, pool, spec)


def _changed(fields: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a pool, changed as the options say."""
    from fray.cli.options import parse_label

    said = {name: value for name, value in given.items() if value not in (None, ())}
    capacity = {name: said.pop(name) for name in ("cpu", "memory") if name in said}
    settings = {name: said.pop(name) for name in ("project", "image", "package", "service_account") if name in said}
    if "labels" in said:
        said["labels"] = dict(parse_label(text) for text in said["labels"])
    if "zones" in said:
        said["zones"] = list(said["zones"])
    provider = said.get("provider", fields.get("provider"))
    if provider != fields.get("provider"):  # settings of one provider are of no use to another
        fields = {name: value for name, value in fields.items() if name in ("min", "max", "idle_seconds", "labels")}
    changed = {**fields, **said}
    if capacity:
        changed["capacity"] = {**fields.get("capacity", {}), **capacity}
    if settings:
        changed[str(provider)] = {**fields.get(str(provider), {}), **settings}
    return changed


@_subcommand("show")
@click.argument("pool")
def _show_one(app: App, pool: str) -> None:
    """Show what machines POOL may have, in the format of a file for `fray up`."""
    from fray_layouts.errors import InvalidInput

    record = app.run(lambda core: _read(core, {}))[0].get(pool)
    if record is None or record.provisioning is None:
        raise InvalidInput("pool", pool, "there is no such pool of machines; `fray pool ls` lists all of them")
    _show(app, pool, record.provisioning)


@_subcommand("ls")
def _list(app: App) -> None:
    """List the pools that may have machines, and what they cost an hour now."""
    problems: dict[str, str] = {}
    pools, machines, scaling = app.run(lambda core: _read(core, problems))
    app.warn(problems)
    found = {name: record.provisioning for name, record in pools.items() if record.provisioning is not None}
    data = [_pool_json(name, spec, machines.get(name, []), scaling.get(name)) for name, spec in found.items()]
    empty = "no pool may have machines; set one with `fray pool set` or `fray up`"
    app.show(data, lambda: output.print_table(_COLUMNS, [_row(each) for each in data], empty))


@_subcommand("rm")
@click.argument("pool")
def _remove(app: App, pool: str) -> None:
    """Make POOL a plain pool again, without machines of its own: people start its agents."""
    from fray.machine_pools import remove_pool

    app.run(lambda core: remove_pool(core, pool))
    app.show({"pool": pool}, lambda: output.echo(f"pool {pool} no longer has machines of its own"))


def _show(app: App, pool: str, spec: ProvisioningSpec) -> None:
    from fray.machine_pools import written_pool

    document = {"pools": {pool: written_pool(spec)}}

    def text() -> None:
        import yaml

        output.echo(yaml.safe_dump(document, sort_keys=False).rstrip())

    app.show(document, text)


async def _read(
    core: Core, problems: dict[str, str]
) -> tuple[dict[str, AgentPoolRecord], dict[str, list[MachineRecord]], dict[str, PoolScaling]]:
    """The pools, their machines that are not gone, and the results of the scaler's last run."""
    from fray_coordinator.jobs.pools import read_machines, read_pools, read_scaler
    from fray_layouts.states import MachineState

    machines: dict[str, list[MachineRecord]] = {}
    for machine in await read_machines(core, problems):
        if machine.record.state != MachineState.GONE:
            machines.setdefault(machine.record.pool, []).append(machine.record)
    scaler = await read_scaler(core)
    return await read_pools(core, problems), machines, scaler.pools if scaler is not None else {}


def _pool_json(
    name: str, spec: ProvisioningSpec, machines: list[MachineRecord], scaling: PoolScaling | None
) -> dict[str, Any]:
    from msgspec import to_builtins

    from fray.machine_pools import written_pool
    from fray_coordinator.jobs.why_machines import problem_of
    from fray_coordinator.protocol.scaling.shares import billed_now

    billed = [machine for machine in machines if machine.billed_at is not None]
    return {
        "pool": name,
        **written_pool(spec),
        "min": spec.min,
        "max": spec.max,
        "machines": len(machines),
        "hourly_cost_now": None if any(each.hourly_cost is None for each in billed) else billed_now(billed),
        "problem": problem_of(scaling) if scaling is not None else "",
        "scaling": to_builtins(scaling) if scaling is not None else None,
    }


def _row(pool: dict[str, Any]) -> tuple[str, ...]:
    scaling = pool["scaling"] or {}
    return (
        pool["pool"],
        pool["provider"] + ", spot" * pool.get("spot", False),
        pool.get("machine_type", ""),
        " ".join(pool.get("zones", ())),
        str(pool["min"]),
        str(pool["max"]),
        str(pool["machines"]),
        str(scaling.get("wanted", 0)) if scaling else "",
        output.format_dollars(pool["hourly_cost_now"]),
        pool["problem"] or scaling.get("limit", ""),
    )
