"""`fray pull`: fetch the output files of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fray.cli import output
from fray.cli.app import App, as_command

if TYPE_CHECKING:
    from fray.cluster.pulling import PulledOutputs
    from fray_coordinator.core import Core


@as_command
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Target folder; by default one named after the job's id.",
)
@click.argument("job")
@click.argument("path", default="")
def command(app: App, job: str, path: str, into: Path | None) -> None:
    """Fetch the files of JOB's `outputs`: all of them, or those that match PATH.

    PATH is a file, a folder or a pattern such as 'checkpoints/**'. Files with the same names in DIR are replaced.
    """
    from fray_layouts.units import files_text

    target, pulled = app.run(lambda core: _pull(core, job, path, into))
    for left in pulled.left_out:
        output.echo(f"fray: left out: {left.path}: {left.why}", err=True)
    data = {"into": str(target), "files": [str(file.relative_to(target)) for file in pulled.files], "size": pulled.size}
    text = f"{files_text(len(pulled.files), pulled.size)}, in {target}"
    app.show(data, lambda: output.echo(text))


async def _pull(core: Core, text: str, path: str, into: Path | None) -> tuple[Path, PulledOutputs]:
    from fray.cluster.pulling import pull_outputs
    from fray_coordinator.jobs.lookup import find_job

    job = (await find_job(core, text)).record
    target = into or Path(job.id)
    with _bar(f"fetching from {job.id}") as on_bytes:
        return target, await pull_outputs(core, job, target, path, on_bytes)


@contextmanager
def _bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, if that is a terminal; call it with the bytes so far and the bytes in all."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    shown = (*columns, TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*shown, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title)
        yield lambda done, total: progress.update(task, completed=done, total=total)
