"""`fray agent`: make this machine run jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from fray.cli import output
from fray.cli.app import FORMATS, App, as_command, log_to_stderr
from fray.cli.options import DurationType, at_vm, chip_check, parse_gpus, parse_place, read_vm, with_chips
from fray_layouts.errors import InvalidInput

if TYPE_CHECKING:
    from fray_layouts.records import Resources

log = logging.getLogger("fray")


@as_command
@click.option("--pool", help="Pool to join, whose jobs the agent runs; by default that of its machine, or 'default'.")
@click.option("--cpu", type=float, help="Cores to offer; by default all that this process may use.")
@click.option("--memory", help="Memory to offer, such as 8GB.")
@click.option("--gpus", help="GPUs to offer: a count, or kind:count such as h100:8.")
@click.option("--tpu", help="Type of the TPU slice that this host is in, such as v5litepod-16.")
@click.option(
    "--slice", "slice_name", help="Name of that slice: the same on all of its hosts, and different from other slices."
)
@click.option("--worker", type=int, help="Number of this host in the slice, from 0.")
@click.option("--zone", default="", help="Zone that this host is in.")
@click.option("--region", default="", help="Region that this host is in.")
@click.option("--label", multiple=True, help="Label that jobs may ask for, as name=value; may be repeated.")
@click.option("--machine", default="", help="Name of the pool's machine that this host is, or belongs to.")
@click.option(
    "--provision",
    multiple=True,
    metavar="POOL",
    help="Make and remove the machines of this pool, if no other process does; may be repeated.",
)
@click.option("--preemptible", is_flag=True, help="The cloud may take this host away at any time.")
@click.option(
    "--env-cache", help="Disk for workspaces and environments, such as 50GB; by default 20GB, or a fifth of the disk."
)
@click.option(
    "--bind",
    default="",
    help="Address that actors listen on; by default the address under which others reach this host.",
)
@click.option("--advertise", default="", help="Host name or address under which others reach this host.")
@click.option("--network", default="default", show_default=True, help="Name of the network this host is in.")
@click.option(
    "--idle-exit",
    type=DurationType(),
    metavar="DURATION",
    help="Leave after so long without work, such as 300 seconds or 5m; by default stay.",
)
@click.option("--no-inbound", is_flag=True, help="Other hosts cannot connect to this one, so run no actors.")
@click.option("--unfit-root", is_flag=True, help="Join even if `fray doctor` says that the root cannot hold a cluster.")
@click.option("--log-format", type=click.Choice(FORMATS), default="text", help="Format of the log on stderr.")
def command(
    app: App,
    pool: str | None,
    tpu: str | None,
    slice_name: str | None,
    worker: int | None,
    zone: str,
    region: str,
    label: tuple[str, ...],
    machine: str,
    provision: tuple[str, ...],
    preemptible: bool,
    env_cache: str | None,
    bind: str,
    advertise: str,
    network: str,
    idle_exit: float | None,
    no_inbound: bool,
    unfit_root: bool,
    log_format: str,
    **offered: Any,
) -> None:
    """Join the cluster under the root and run jobs until SIGTERM or Ctrl-C.

    The first signal lets jobs end within their grace; a second one kills them at once. On a VM of Google Cloud, the
    agent asks the metadata server for whatever the options leave open, and for notices of the VM's end.
    """
    from fray.cluster.prestart import PRESTART_MODULES
    from fray_agents.agent.agent import AgentOptions
    from fray_agents.agent.daemon import run_agent
    from fray_agents.host.gce_metadata import end_of_host, metadata_server
    from fray_layouts.spec_parsing import check_name
    from fray_layouts.units import parse_bytes
    from fray_runtime.network import NetworkSettings

    log_to_stderr(log_format)
    server = metadata_server()
    vm = read_vm(server)
    place = at_vm(parse_place(zone, region, label, tpu, slice_name, worker), vm)
    pool = pool or vm.pool or "default"
    check_name("--pool", pool)
    for name in provision:
        check_name("--provision", name)
    capacity = capacity_of(**offered, tpu=place.slice.type if place.slice else None)
    settings = NetworkSettings(network, bind, advertise, inbound=not no_inbound)
    options = AgentOptions(
        pool=pool,
        preemptible=preemptible or vm.preemptible,
        capacity=capacity,
        network=settings,
        place=place,
        check_chips=chip_check(capacity, bool(vm.tpu)),
        idle_exit=idle_exit,
        machine=checked_machine(machine) or vm.machine,
        provision=frozenset(provision),
        end_of_host=partial(end_of_host, server) if server else None,
        preload=PRESTART_MODULES,
        env_cache=None if env_cache is None else parse_bytes("--env-cache", env_cache),
    )

    def joined(agent_id: str) -> None:
        from fray.cli.job_view import resources_text

        text = f"agent {agent_id} in pool {pool}: {resources_text(capacity)}"
        if app.json:
            output.print_json({"agent": agent_id, "pool": pool}, one_line=True)
        elif log_format == "text":
            output.echo(f"fray: {text}")
        log.info("%s", text)

    asyncio.run(_join(app.root, unfit_root, lambda: run_agent(app.root, options, joined)))


def checked_machine(name: str) -> str:
    """The name. Raises InvalidInput if it is neither empty nor a possible name of a machine."""
    from fray_layouts.key_encoding import is_id

    if name and not is_id(name):
        raise InvalidInput("--machine", name, "give the name that `fray machines` shows, or leave it out")
    return name


async def _join(root: str, unfit_root: bool, run: Callable[[], Awaitable[None]]) -> None:
    """Run an agent of the root. Raises StoreRefused if the root cannot hold a cluster and `unfit_root` is not set."""
    from fray_coordinator.errors import StoreRefused
    from fray_coordinator.store.probe import why_unfit

    if not unfit_root and (why := await why_unfit(root)):
        raise StoreRefused(f"{why}. Give --unfit-root to join it anyway")
    await run()


def capacity_of(cpu: float | None, memory: str | None, gpus: str | None, tpu: str | None = None) -> Resources:
    """The resources to offer: those of this host, except where the options say otherwise."""
    if tpu is not None and gpus is not None:
        raise InvalidInput("--gpus", gpus, "a host offers either GPUs or the chips of a TPU (--tpu); give one of them")
    from msgspec.structs import replace

    from fray_agents.host.capacity import discover
    from fray_layouts.units import parse_bytes

    found = discover()
    if cpu is not None:
        if not round(cpu * 1000) > 0:
            remedy = "give at least 0.001 cores, or leave it out to offer all of this host"
            raise InvalidInput("--cpu", cpu, remedy)
        found = replace(found, cpu=round(cpu * 1000))
    if memory is not None:
        found = replace(found, memory=parse_bytes("--memory", memory))
    if tpu is not None:
        found = with_chips(found, tpu)
    if gpus is not None:
        kind, count = parse_gpus(gpus)
        if not isinstance(count, int):
            raise InvalidInput(
                "--gpus", gpus, "an agent offers whole GPUs; give a whole number. Jobs may ask for a part of one"
            )
        device = f"gpu-{kind.lower()}" if kind else found.device or "gpu"
        found = replace(found, device=device if count else "", device_count=count)
    return found
