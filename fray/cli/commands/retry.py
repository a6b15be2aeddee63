"""`fray retry`: submit jobs again that have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray.cli.job_filter import JobFilter, chosen_jobs, filter_options

if TYPE_CHECKING:
    from fray_coordinator.core import Core
    from fray_layouts.records import JobRecord


@as_command
@click.option("--failed", is_flag=True, help="All failed jobs, or those of them that the other options select.")
@filter_options
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
def command(app: App, jobs: tuple[str, ...], failed: bool, **filters: str | None) -> None:
    """Submit jobs again that have ended, each as a new job that names the old one and has no parent.

    JOB is a whole id. For a name, or the beginning of an id, this asks first. Options leave out jobs that
    were retried already, and say which others: actors and workers of a program come back when it runs again. A
    detached actor is created anew under its name.
    """
    chosen = JobFilter(**{**filters, **({"state": "failed"} if failed else {})})
    found = chosen_jobs(app, "retry", jobs, chosen, ended=True)
    obstacles: dict[str, str] = {}
    done = app.run(lambda core: _retry(core, found, None if jobs else obstacles))
    app.warn({job: f"{job}: {why}" for job, why in obstacles.items()})
    rows = [(new.id, new.retry_of) for new in done]
    app.show([{"job": new, "retry_of": old} for new, old in rows], lambda: output.print_ids(rows, ("JOB", "RETRY OF")))


async def _retry(core: Core, jobs: list[JobRecord], left_out: dict[str, str] | None) -> list[JobRecord]:
    """Submit the jobs again; a job of a launch group, or of a reservation that has ended, runs outside of it.

    left_out: is filled with the jobs that cannot be submitted again, and why; None: one of them is an error.
    """
    from fray_coordinator.concurrency import map_concurrently
    from fray_coordinator.jobs.submission import retry, retry_obstacles
    from fray_coordinator.placements.launching import outside_of_ended

    if left_out is not None:
        left_out.update(await retry_obstacles(core, jobs))
        jobs = [job for job in jobs if job.id not in left_out]
    return await retry(core, await map_concurrently(jobs, lambda job: outside_of_ended(core, job)))
