"""`fray ls`: list the files of a job."""

from __future__ import annotations

import click

from fray.cli import output
from fray.cli.app import App, as_command


@as_command
@click.argument("path")
def command(app: App, path: str) -> None:
    """List JOB's log and output files: PATH is JOB, or JOB/FOLDER.

    Programs read the same files by fsspec, as fray://JOB/FILE.
    """
    from fray.cluster.job_files import list_entries
    from fray_layouts.units import format_bytes

    entries = app.run(lambda core: list_entries(core, path))
    data = [{"path": entry.path, "size": entry.size, "folder": entry.is_folder} for entry in entries]
    sizes = ["" if entry.is_folder or entry.size is None else format_bytes(entry.size) for entry in entries]
    width = max(map(len, sizes), default=0)

    def show() -> None:
        for entry, size in zip(entries, sizes, strict=True):
            output.echo(f"{size:>{width}}  {entry.path}{'/' * entry.is_folder}")

    app.show(data, show)
