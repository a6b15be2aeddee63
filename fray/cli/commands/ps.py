"""`fray ps`: list jobs."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray.cli.job_filter import JobFilter, filter_options

if TYPE_CHECKING:
    from fray_coordinator.core import Core

_WATCH_INTERVAL = 2.0
"""Seconds between two refreshes of --watch: each reads the records of all jobs that wait or run."""

_SHARE = 5
"""On a terminal, commands get at most a fifth of its width; --json has all of them."""


@as_command
@click.option("--all", "-a", "everything", is_flag=True, help="Also finished jobs, until retention removes them.")
@filter_options
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the last N that were submitted.")
@click.option("--watch", "-w", is_flag=True, help="Refresh every two seconds, until Ctrl-C.")
def command(app: App, everything: bool, limit: int | None, watch: bool, **filters: str | None) -> None:
    """List the jobs that wait or run."""
    show = _lister(app, JobFilter(**filters), everything, limit, watch)
    show()
    while watch:
        time.sleep(_WATCH_INTERVAL)
        show()


def _lister(app: App, chosen: JobFilter, everything: bool, limit: int | None, clear: bool) -> Any:
    from fray.cli.job_view import JOB_COLUMNS, job_json, job_row, usage_json
    from fray_coordinator.jobs.why_waiting import reasons_by_job, why_stuck, with_claims
    from fray_coordinator.protocol.transitions import is_waiting

    empty = "no job waits or runs; --all also lists finished jobs"
    if everything or chosen:
        empty = f"there is no such job{chosen.hint}"

    def show() -> None:
        problems: dict[str, str] = {}
        found, around, machines = app.run(lambda core: _find(core, chosen, problems, everything, limit))
        jobs, holdings, live, now, _ = found
        if clear and not app.json:
            click.clear()  # only now that the jobs are read, so that the screen is never empty
        app.warn(problems)
        waiting = reasons_by_job(filter(is_waiting, jobs), with_claims(live, jobs), now, around, machines)
        waiting |= {job.id: why for job in jobs if (why := why_stuck(job, live))}
        data: list[dict[str, Any]] = [
            {
                **job_json(job),
                "usage": usage_json(holdings.get(job.id)),
                "waiting": [waiting[job.id]] if job.id in waiting else [],
            }
            for job in jobs
        ]
        width = shutil.get_terminal_size().columns // _SHARE if sys.stdout.isatty() else 0
        rows = [job_row(job, holdings.get(job.id), waiting.get(job.id, ""), now, width) for job in jobs]
        app.show(data, lambda: output.print_table(JOB_COLUMNS, rows, empty))

    return show


async def _find(core: Core, chosen: JobFilter, problems: dict[str, str], everything: bool, limit: int | None) -> Any:
    """The jobs that `JobFilter.find` finds, the reservations in which they wait, and the machines of their pools."""
    from fray_coordinator.jobs.why_machines import machines_for
    from fray_coordinator.jobs.why_waiting import reservations_around
    from fray_coordinator.protocol.transitions import is_waiting

    found = await chosen.find(core, problems, everything, limit)
    waiting = [job for job in found[0] if is_waiting(job)]
    around = await reservations_around(core, waiting)
    return found, around, await machines_for(core, waiting, around)
