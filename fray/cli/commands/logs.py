"""`fray logs`: print what a job printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray.cli.output import LinePrinter

if TYPE_CHECKING:
    from fray_coordinator.core import Core


@as_command
@click.option("--follow", "-f", is_flag=True, help="Print all attempts from the first, until the job has ended.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--replica", type=int, metavar="N", help="Only this replica of a gang, from 0; by default all, by time.")
@click.option("--raw", is_flag=True, help="Print byte for byte, with colours and other terminal control characters.")
@click.argument("job")
def command(app: App, job: str, follow: bool, tail: int | None, replica: int | None, raw: bool) -> None:
    """Print the output of JOB's current or last attempt, with terminal control characters escaped.

    Until the next attempt begins, this shows the last one that printed anything. Lines of a gang's replicas are merged,
    each after the number of its replica.
    """
    if follow and tail is not None:
        raise click.UsageError("--tail and --follow cannot be combined; give one of them")
    app.run(
        lambda core: _follow(core, app, job, replica, raw) if follow else _print(core, app, job, tail, replica, raw)
    )


async def _print(core: Core, app: App, text: str, tail: int | None, replica: int | None, raw: bool) -> None:
    from fray_coordinator.jobs.logs import read_logs
    from fray_coordinator.jobs.lookup import find_job
    from fray_layouts.spec import is_gang

    job = (await find_job(core, text)).record
    lines = await read_logs(core, job, tail, replica)
    if lines and (attempt := lines[0].attempt) != job.attempt:
        output.echo(f"fray: attempt {job.attempt} has not begun; this is the output of attempt {attempt}", err=True)
    printer = LinePrinter(app.json, raw, merges=replica is None and is_gang(job.spec))
    printer.print(lines)
    printer.end()


async def _follow(core: Core, app: App, text: str, replica: int | None, raw: bool) -> None:
    from contextlib import aclosing

    from fray_coordinator.jobs.logs import follow_chunks
    from fray_coordinator.jobs.lookup import find_job
    from fray_layouts.spec import is_gang

    job = (await find_job(core, text)).record
    printer = LinePrinter(app.json, raw, merges=replica is None and is_gang(job.spec))
    async with aclosing(follow_chunks(core, job.id, replica=replica)) as chunks:
        async for chunk in chunks:
            printer.print(chunk)
    printer.end()
