"""`fray stop`: stop jobs and their children."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray.cli.job_filter import JobFilter, chosen_jobs, filter_options

if TYPE_CHECKING:
    from fray_coordinator.core import Core
    from fray_layouts.records import JobRecord


@as_command
@click.option("--all", "-a", "everything", is_flag=True, help="All jobs of the cluster that wait or run.")
@filter_options
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
def command(app: App, jobs: tuple[str, ...], everything: bool, **filters: str | None) -> None:
    """Ask jobs and their children to end: SIGTERM, their grace, then SIGKILL. This does not wait until they have ended.

    JOB is a whole id. For a name, or the beginning of an id, this asks first.
    """
    from fray.cli.job_view import display_status

    found = chosen_jobs(app, "stop", jobs, JobFilter(**filters), everything)
    records = app.run(lambda core: _stop(core, found))
    rows = [(job.id, display_status(job)) for job in records]
    data = [{"job": job, "status": status} for job, status in rows]
    app.show(data, lambda: output.print_table(("JOB", "STATUS"), rows))


async def _stop(core: Core, jobs: Sequence[JobRecord]) -> list[JobRecord]:
    from fray_coordinator.concurrency import map_concurrently
    from fray_coordinator.jobs import stopping

    return await map_concurrently(jobs, lambda job: stopping.stop(core, job.id, "fray stop"))
