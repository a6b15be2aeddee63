"""`fray cost`: what the requests to the storage and the machines of pools cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fray.cli import output
from fray.cli.app import App, as_command

if TYPE_CHECKING:
    from fray.cli.cost_model import CostLine
    from fray_coordinator.core import Core
    from fray_coordinator.protocol.scaling.shares import MachineShare

_OWNERS = ("job", "user", "namespace", "pool")


@as_command
@click.option("--by", type=click.Choice(_OWNERS), help="Only the machines, divided among the jobs that run on them.")
def command(app: App, by: str | None) -> None:
    """Estimate the cost of the cluster's requests, count those that its agents have made, and sum up its machines.

    Requests are at the list prices of GCS and S3 in a single region; of storage only logs are included, and traffic is
    not. Requests to local files cost nothing, so for such a root the estimate is for a bucket with default settings.
    With --by, each job pays for the part of its hosts that it asked for, while it runs there; the cost of idle machines
    is left out.
    """
    problems: dict[str, str] = {}
    if by is not None:
        shares = app.run(lambda core: _shares(core, by, problems))
        app.warn(problems)
        dearest = sorted(shares.items(), key=lambda each: -each[1].so_far)
        shown = [
            (owner, output.format_dollars(share.hourly), output.format_dollars(share.so_far))
            for owner, share in dearest
        ]
        found = [{by: owner, "hourly": share.hourly, "so_far": share.so_far} for owner, share in dearest]
        app.show(
            found,
            lambda: output.print_table(
                (by.upper(), "AN HOUR", "SO FAR"), shown, "no job has run on a machine of a pool"
            ),
        )
        return
    lines = app.run(lambda core: _estimate(core, problems))
    app.warn(problems)
    rows = [(line.what, f"{line.class_a:,.0f}", f"{line.class_b:,.0f}", f"${line.dollars:,.4f}") for line in lines]
    columns = ("", "WRITES+LISTS", "READS", "COST")
    data = [{"what": o.what, "writes_and_lists": o.class_a, "reads": o.class_b, "dollars": o.dollars} for o in lines]
    app.show(data, lambda: output.print_table(columns, rows))


async def _estimate(core: Core, problems: dict[str, str]) -> list[CostLine]:
    from fray.cli.cost_model import estimates, machine_lines, spent
    from fray_coordinator.jobs.lookup import read_agents
    from fray_coordinator.jobs.pools import read_machines
    from fray_layouts.records import ClusterSettings

    agents = [agent.record for agent in await read_agents(core, problems)]
    machines = [machine.record for machine in await read_machines(core, problems)]
    settings = ClusterSettings() if core.store.local else core.settings
    return [*estimates(settings), *spent(agents), *machine_lines(machines, core.now())]


async def _shares(core: Core, by: str, problems: dict[str, str]) -> dict[str, MachineShare]:
    from fray_coordinator.jobs.lookup import all_jobs, read_agents
    from fray_coordinator.jobs.pools import read_machines
    from fray_coordinator.protocol.scaling.shares import shares_of_jobs, sums_by_owner

    agents = [agent.record for agent in await read_agents(core, problems)]
    machines = [machine.record for machine in await read_machines(core, problems)]
    jobs = await all_jobs(core, problems)
    owners = {job.id: job.id if by == "job" else getattr(job.spec, by) for job in jobs}
    return sums_by_owner(shares_of_jobs(jobs, agents, machines, core.now()), owners)
