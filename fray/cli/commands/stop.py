"""`fray stop`: end jobs."""

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
    """Stop jobs and their children. A running one gets SIGTERM, its grace, then SIGKILL; this does not wait for it."""
    from fray.cli.show import status_of

    records = app.run(lambda core: _stop(core, jobs))
    rows = [(job.id, status_of(job)) for job in records]
    data = [{"job": job, "status": status} for job, status in rows]
    app.show(data, lambda: output.print_table(("JOB", "STATUS"), rows))


async def _stop(core: Core, texts: tuple[str, ...]) -> list[JobRecord]:
    from fray_coordinator import stopping
    from fray_coordinator.core import each
    from fray_coordinator.lookup import find_job

    found = await each(texts, lambda text: find_job(core, text))
    return await each(found, lambda job: stopping.stop(core, job.record.id, "fray stop"))
