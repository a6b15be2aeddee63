"""The processes of a cluster, found by the root that stands in their environment; and waiting for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


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


def wait_for(condition: Callable[[], Any], otherwise: str, within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)
