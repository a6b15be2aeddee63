"""Finds the processes of a cluster by their environment or working directory, and waits for them."""

from __future__ import annotations

import os
from pathlib import Path


def processes(variable: str, value: str, place: str) -> list[int]:
    """The living processes that were started with this variable, or whose directory has `place` in its name.

    A process that was started ahead, as a spare, was told its variables later; they do not show from outside.
    """
    wanted = f"{variable}={value}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            works_in = os.readlink(folder / "cwd")
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended meanwhile, or is another user's
            continue
        if wanted in environment or place in works_in:
            found.append(int(folder.name))
    return found
