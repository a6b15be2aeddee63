"""`fray cost`: what the requests to the storage cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fray.cli import output
from fray.cli.app import App, as_command

if TYPE_CHECKING:
    from fray.cli.cost_model import CostLine
    from fray_coordinator.core import Core


@as_command
def command(app: App) -> None:
    """Estimate what the cluster's requests cost, from its settings, and count what its agents have asked for.

    At the list prices of GCS and S3 in a single region; storage and traffic are not included. Requests to local files
    cost nothing: for such a root the estimate is that of a bucket with default settings.
    """
    lines = app.run(_estimate)
    rows = [(line.what, f"{line.class_a:,.0f}", f"{line.class_b:,.0f}", f"${line.dollars:,.4f}") for line in lines]
    columns = ("", "WRITES+LISTS", "READS", "COST")
    data = [{"what": o.what, "writes_and_lists": o.class_a, "reads": o.class_b, "dollars": o.dollars} for o in lines]
    app.show(data, lambda: output.print_table(columns, rows))


async def _estimate(core: Core) -> list[CostLine]:
    from fray.cli.cost_model import estimates, spent
    from fray_coordinator.jobs.lookup import read_agents
    from fray_layouts.records import ClusterSettings

    agents = [agent.record for agent in await read_agents(core, problems={})]
    return [*estimates(ClusterSettings() if core.store.local else core.settings), *spent(agents)]
