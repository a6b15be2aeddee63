"""`fray up`: create a cluster under a root, with the pools of a file."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray_layouts.errors import InvalidInput

if TYPE_CHECKING:
    from fray_coordinator.core import Core
    from fray_layouts.pool_file import PoolToSet


@as_command
@click.argument("at", required=False, metavar="[ROOT]")
@click.option(
    "--file",
    "-f",
    type=click.Path(path_type=Path),
    help="File with the pools; by default fray.yaml, if it exists here.",
)
@click.option(
    "--agent", is_flag=True, help="Also start an agent on this machine, which keeps running in the background."
)
def command(app: App, at: str | None, file: Path | None, agent: bool) -> None:
    """Create a cluster under ROOT, unless it exists, and set the pools that a file describes.

    This first tries out the storage, like `fray doctor`, and asks the providers of the pools about zones, rights and
    quotas. Pools that the file does not name stay as they are.
    """
    app = App(at or app.given_root, app.json)
    root = app.root
    path = _pool_file(file)
    pools = _pools(path)
    _refuse_unfit(root)
    app.run(lambda core: _write(core, pools, path), create=True)
    process, log = _start_agent(root) if agent else (None, "")
    following = _next_commands(root, sorted(pools), agent)
    data: dict[str, Any] = {"root": root, "pools": sorted(pools), "agent_pid": process, "next": following}

    def text() -> None:
        output.echo(f"the cluster is at {root}")
        for name, pool in pools.items():
            output.echo(f"pool {name}: {_pool_text(pool)}")
        if process is not None:
            output.echo(f"an agent runs as process {process}; its log is {log}")
        output.echo("next:")
        for line in following:
            output.echo(f"    {line}")

    app.show(data, text)


def _pool_file(given: Path | None) -> Path | None:
    from fray.machine_pools import FRAY_FILE

    if given is not None:
        if not given.is_file():
            raise InvalidInput("--file", str(given), "there is no such file; give the path of a file with pools")
        return given
    return Path(FRAY_FILE) if Path(FRAY_FILE).is_file() else None


def _pools(path: Path | None) -> dict[str, PoolToSet]:
    """The pools of the file. Prints on stderr which prices are unknown."""
    from fray.machine_pools import price_warnings, read_fray_file

    pools = read_fray_file(path) if path is not None else {}
    for name, pool in pools.items():
        for warning in price_warnings(pool.provisioning):
            output.echo(f"fray: pool {name}: {warning}", err=True)
    return pools


def _refuse_unfit(root: str) -> None:
    from fray_coordinator.errors import StoreRefused
    from fray_coordinator.store.probe import why_unfit

    if why := asyncio.run(why_unfit(root)):
        raise StoreRefused(why)


async def _write(core: Core, pools: dict[str, PoolToSet], path: Path | None) -> None:
    from fray.cli.options import print_stored
    from fray.machine_pools import write_pool

    await _check(core, pools)
    base = path.parent if path is not None else Path()
    for name, pool in pools.items():
        await write_pool(core, name, pool, base, print_stored)


async def _check(core: Core, pools: dict[str, PoolToSet]) -> None:
    """Print what keeps the providers from making machines. Raises ProviderError if a pool can never have any."""
    from fray_agents.provisioning.provider import ProviderError
    from fray_agents.provisioning.provider_opening import check_pool

    checks = (check_pool(core, name, pool.provisioning) for name, pool in pools.items())
    for name, found in zip(pools, await asyncio.gather(*checks), strict=True):
        for error in found:
            if error.kind == "invalid":
                raise ProviderError(error.kind, f"pools.{name}: {error}")
            output.echo(f"fray: pool {name}: a check from this host says that it gets no machines: {error}", err=True)


def _pool_text(pool: PoolToSet) -> str:
    spec = pool.provisioning
    what = " ".join(filter(None, (spec.provider, spec.machine_type, "spot" * spec.spot)))
    where = f" in {', '.join(spec.zones)}" if spec.zones else ""
    limit = f", for at most ${spec.max_hourly_cost:,.2f} an hour" if spec.max_hourly_cost is not None else ""
    return f"{spec.min} to {spec.max} machines, {what}{where}{limit}"


def _start_agent(root: str) -> tuple[int, str]:
    """Start an agent that outlives this command; return its process id and the path of its log."""
    handle, log = tempfile.mkstemp(prefix="fray-agent-", suffix=".log")
    with os.fdopen(handle, "wb") as written:
        agent = subprocess.Popen(
            [sys.executable, "-m", "fray", "agent", "--root", root],
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )
    return agent.pid, log


def _next_commands(root: str, pools: list[str], agent: bool) -> list[str]:
    name = f"export FRAY_CLUSTER_SPEC={shlex.quote(root)}"
    if not pools and not agent:
        return [name, "fray agent", "fray run -- echo hello"]
    pool = "" if agent or "default" in pools else f"--pool {pools[0]} "
    return [name, f"fray run {pool}-- echo hello", "fray status echo"]
