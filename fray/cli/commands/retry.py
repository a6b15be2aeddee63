"""`fray retry`: submit jobs that have ended once more."""

from __future__ import annotations

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray.cli.job_filter import JobFilter, chosen_jobs, filter_options


@as_command
@click.option("--failed", is_flag=True, help="All jobs that have failed, of those that the other options allow.")
@filter_options
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
def command(app: App, jobs: tuple[str, ...], failed: bool, **filters: str | None) -> None:
    """Submit jobs that have ended once more, each as a new job that names the old one. It has no parent.

    JOB is a whole id; for a name, or the beginning of an id, this asks first.
    """
    from fray_coordinator.jobs.submission import retry

    chosen = JobFilter(**{**filters, **({"state": "failed"} if failed else {})})
    found = chosen_jobs(app, "retry", jobs, False, chosen)
    rows = [(new.id, new.retry_of) for new in app.run(lambda core: retry(core, found))]
    app.show([{"job": new, "retry_of": old} for new, old in rows], lambda: output.print_ids(rows, ("JOB", "RETRY OF")))
