"""Reads the standard input of a command that submits; each attempt of the job reads it from its start."""

from __future__ import annotations

import os
import select
import stat
import time

from fray.cli import output
from fray_layouts.errors import InvalidInput
from fray_layouts.units import format_bytes

MAX_BYTES = 64 * 1024**2
"""Most bytes of a job's standard input: they pass through the memory of this command, and of the agent."""

_WARN_AFTER = 2.0
"""Seconds after which a message says what the command waits for; most pipes end before that."""

_READ = 1 << 20
"""Bytes of one read."""


def piped_input(fd: int = 0) -> bytes:
    """All bytes of a file, a pipe or a socket on standard input; b"" if it is a terminal or closed.

    Raises:
        InvalidInput: there are more than `MAX_BYTES`.
    """
    try:
        mode = os.fstat(fd).st_mode
    except OSError:  # standard input is closed
        return b""
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return b""
    data, began, is_told = bytearray(), time.monotonic(), False
    while True:
        patience = None if is_told else max(0.0, began + _WARN_AFTER - time.monotonic())
        if not select.select([fd], [], [], patience)[0]:
            is_told = True
            output.echo(
                "fray: reading standard input to its end, for the job; add < /dev/null to give the job no input",
                err=True,
            )
            continue
        part = os.read(fd, _READ)
        if not part:
            return bytes(data)
        data += part
        if len(data) > MAX_BYTES:
            remedy = "put it into the bucket or into a file of the workspace, and let the job read it from there"
            raise InvalidInput("standard input", f"more than {format_bytes(MAX_BYTES)}", remedy)
