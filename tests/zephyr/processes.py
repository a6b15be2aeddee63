"""The processes of a cluster, found by the root that stands in their environment."""

from __future__ import annotations

from pathlib import Path


def processes(variable: str, value: str) -> list[int]:
    """The living processes that were started with this variable."""
    wanted = f"{variable}={value}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended meanwhile, or is another user's
            continue
        if wanted in environment:
            found.append(int(folder.name))
    return found
