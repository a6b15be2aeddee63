"""`fray reserve`: reserve hosts for the jobs of a namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fray.cli import output
from fray.cli.app import App, VariableOption, as_command
from fray.cli.options import DurationType, device_of

if TYPE_CHECKING:
    from fray.resources import ResourceConfig
    from fray_coordinator.core import Core


@as_command
@click.option(
    "--namespace", required=True, cls=VariableOption, envvar="FRAY_NAMESPACE", help="Namespace whose jobs may use it."
)
@click.option("--cpu", type=float, default=1.0, show_default=True, help="Cores of each replica.")
@click.option("--memory", help="Memory of each replica, such as 512MiB or 2GB.")
@click.option("--gpus", help="GPUs of each replica: a count, or kind:count such as h100:8.")
@click.option("--tpu", metavar="TYPE", help="TPU slices, such as v5litepod-16; replicas are then counted in slices.")
@click.option("--replicas", type=int, default=1, show_default=True, help="Least number of replicas.")
@click.option("--max-replicas", type=int, help="Greatest number of replicas; by default the least.")
@click.option(
    "--ttl",
    type=DurationType(),
    default=3600.0,
    show_default=True,
    help="Time until it ends, unless renewed: seconds, or 2h.",
)
@click.option("--priority", type=int, default=0, help="From -500 to 499; a higher one gets room first.")
@click.option("--on-demand", is_flag=True, help="Only hosts that are not preemptible.")
@click.option("--pool", default="default", show_default=True, help="Pool whose agents it uses.")
def command(app: App, namespace: str, **options: Any) -> None:
    """Reserve hosts, and print the reservation's id.

    Once it has its least number of replicas, jobs of the namespace start in it if they fit and ask for the same device.
    `fray reservations` shows, renews and releases it.
    """
    made = app.run(lambda core: _reserve(core, namespace, options))
    app.show({"reservation": made}, lambda: output.echo(made))


async def _reserve(core: Core, namespace: str, options: dict[str, Any]) -> str:
    from fray.cluster.placing import checked_config, create_reservation
    from fray.types import ReservationConfig

    least = options["replicas"]
    config = ReservationConfig(
        min_resources=_resources(options, least),
        max_resources=_resources(options, least if options["max_replicas"] is None else options["max_replicas"]),
        priority=options["priority"],
        ttl_seconds=options["ttl"],
        preemptible=not options["on_demand"],
        pool=options["pool"],
    )
    return await create_reservation(core, checked_config(config), namespace, None, private="")


def _resources(options: dict[str, Any], count: int) -> ResourceConfig:
    from fray.resources import ResourceConfig, TpuConfig

    device = device_of(options["gpus"], options["tpu"])
    if isinstance(device, TpuConfig):
        return ResourceConfig.with_tpu(device.variant, count, cpu=options["cpu"], ram=options["memory"])
    return ResourceConfig(options["cpu"], options["memory"], device=device, replicas=count)
