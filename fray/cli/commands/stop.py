"""`fray stop`: stop jobs and their children."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fray.cli import output
from fray.cli.app import App, as_command

if TYPE_CHECKING:
    from fray_coordinator.core import Core
    from fray_layouts.records import JobRecord


@as_command
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
def command(app: App, jobs: tuple[str, ...]) -> None:
    """Ask jobs and their children to end: SIGTERM, their grace, then SIGKILL. This does not wait until they have."""
    from fray.cli.job_view import display_status

    records = app.run(lambda core: _stop(core, jobs))
    rows = [(job.id, display_status(job)) for job in records]
    data = [{"job": job, "status": status} for job, status in rows]
    app.show(data, lambda: output.print_table(("JOB", "STATUS"), rows))


async def _stop(core: Core, texts: tuple[str, ...]) -> list[JobRecord]:
    from fray_coordinator.concurrency import map_concurrently
    from fray_coordinator.jobs import stopping
    from fray_coordinator.jobs.lookup import find_job

    found = await map_concurrently(texts, lambda text: find_job(core, text))
    return await map_concurrently(found, lambda job: stopping.stop(core, job.record.id, "fray stop"))
