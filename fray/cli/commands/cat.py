"""`fray cat`: print a file of a job."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from fray.cli.app import App, as_command

if TYPE_CHECKING:
    from fray_coordinator.core import Core


@as_command
@click.argument("path")
def command(app: App, path: str) -> None:
    """Print a file byte for byte: PATH is JOB/FILE, as `fray ls JOB` shows it."""
    app.run(lambda core: _print(core, path))
    sys.stdout.buffer.flush()


async def _print(core: Core, path: str) -> None:
    from contextlib import aclosing

    from fray.cluster.job_files import file_pieces, find_file

    file = await find_file(core, path)
    async with aclosing(file_pieces(core, file)) as pieces:
        async for piece in pieces:
            sys.stdout.buffer.write(piece)
