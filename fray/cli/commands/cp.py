"""`fray cp`: copy files of a job to a folder or a URL."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fray.cli import output
from fray.cli.app import App, as_command

if TYPE_CHECKING:
    from fray_coordinator.core import Core


@as_command
@click.argument("path")
@click.argument("target")
def command(app: App, path: str, target: str) -> None:
    """Copy a file, or a folder with all that is in it: PATH is JOB/FILE or JOB/FOLDER, as `fray ls JOB` shows it.

    TARGET is a local path, or a URL that fsspec can write to, such as gs://bucket/run1. If it ends in / or is a local
    folder, the copy goes into it. `fray pull JOB DIR` fetches all outputs into a folder.
    """
    source = path.strip("/")
    into = target.endswith("/") or os.path.isdir(target)
    top = f"{target.rstrip('/')}/{source.rpartition('/')[2]}" if into else target
    copied = app.run(lambda core: _copy(core, source, top))

    def show() -> None:
        for copy, place in copied:
            output.echo(f"{copy} -> {place}")

    app.show([{"path": copy, "target": place} for copy, place in copied], show)


async def _copy(core: Core, path: str, top: str) -> list[tuple[str, str]]:
    places = [(each, top + each.removeprefix(path)) for each in await _files(core, path)]
    for each, place in places:
        _check_links(top, place)
        await _copy_file(core, each, place)
    return places


async def _files(core: Core, path: str) -> list[str]:
    """The file, or all files below a folder."""
    from fray.cluster.job_files import list_entries

    found: list[str] = []
    for entry in await list_entries(core, path):
        found += await _files(core, entry.path) if entry.is_folder else [entry.path]
    return found


def _check_links(top: str, place: str) -> None:
    """Raise InvalidInput if a link below a local target leads out of it: the names come from the storage."""
    from fray_layouts.errors import InvalidInput

    if "://" not in top and not Path(os.path.realpath(place)).is_relative_to(os.path.realpath(top)):
        raise InvalidInput("target", place, "a link in it leads to another folder; remove it, or choose another target")


async def _copy_file(core: Core, path: str, place: str) -> None:
    """Copy one file. It appears under its name once it is complete."""
    from contextlib import aclosing

    from fsspec.core import url_to_fs

    from fray.cluster.job_files import file_pieces, find_file
    from fray_layouts.errors import InvalidInput

    file = await find_file(core, path)
    try:
        files, name = await asyncio.to_thread(url_to_fs, place)
        await asyncio.to_thread(files.makedirs, files._parent(name), exist_ok=True)
        with files.transaction, files.open(name, "wb") as out:
            async with aclosing(file_pieces(core, file)) as pieces:
                async for piece in pieces:
                    await asyncio.to_thread(out.write, piece)
    except (ImportError, ValueError, OSError) as error:
        raise InvalidInput("target", place, f"it cannot be written: {error}") from error
