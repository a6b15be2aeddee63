"""`fray logs`: print what a job printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray.cli.log_lines import print_lines

if TYPE_CHECKING:
    from fray_coordinator.core import Core


@as_command
@click.option("--follow", "-f", is_flag=True, help="Print all attempts from the first, until the job has ended.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--raw", is_flag=True, help="Byte for byte, with colours and whatever else the terminal obeys.")
@click.argument("job")
def command(app: App, job: str, follow: bool, tail: int | None, raw: bool) -> None:
    """Print what JOB's current or last attempt printed; characters that a terminal obeys are escaped.

    Until the next attempt begins, that is the last one which printed anything.
    """
    if follow and tail is not None:
        raise click.UsageError("--tail and --follow do not go together; give one of them")
    app.run(lambda core: _follow(core, app, job, raw) if follow else _print(core, app, job, tail, raw))


async def _print(core: Core, app: App, text: str, tail: int | None, raw: bool) -> None:
    from fray_coordinator.jobs.logs import read_logs
    from fray_coordinator.jobs.lookup import find_job

    job = (await find_job(core, text)).record
    lines = await read_logs(core, job, tail)
    if lines and (attempt := lines[0].attempt) != job.attempt:
        output.echo(f"fray: attempt {job.attempt} has not begun; this is what attempt {attempt} printed", err=True)
    print_lines(lines, app.json, raw)


async def _follow(core: Core, app: App, text: str, raw: bool) -> None:
    from contextlib import aclosing

    from fray_coordinator.jobs.logs import follow_chunks
    from fray_coordinator.jobs.lookup import find_job

    job = (await find_job(core, text)).record
    async with aclosing(follow_chunks(core, job.id)) as chunks:
        async for chunk in chunks:
            print_lines(chunk, app.json, raw)
