"""The directories of Unix sockets, by which callers on the same host reach an actor server."""

import contextlib
import errno
import socket
import time
from pathlib import Path

from fray_agents.host.directories import private_dir, user_dir

_MAX_DIR_LENGTH = 80
"""Characters of a directory's path in which a socket still fits: the path of a socket has at most 107 (unix(7))."""

_MIN_STALE_AGE = 60.0
"""Seconds in which a socket is left alone: its server may be about to listen."""


def socket_dir(task_dir: str | None) -> Path:
    """A directory for Unix sockets that only this user can enter, made where it is absent.

    It is in the task's directory, which the agent removes; outside of tasks, or where that is too deep, in the user's.

    Raises:
        UntrustedDirectory: somebody else could write there.
    """
    if task_dir is not None and len(task_dir) <= _MAX_DIR_LENGTH:
        return private_dir(Path(task_dir, "rpc"))
    return user_dir("rpc")


def remove_stale_sockets(directory: Path) -> None:
    """Remove the sockets on which nobody listens any more."""
    for path in directory.glob("*.sock"):
        with contextlib.suppress(FileNotFoundError):  # another server was faster
            if time.time() - path.stat().st_mtime > _MIN_STALE_AGE and not _listens(path):
                path.unlink()


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) != errno.ECONNREFUSED  # a queue that is full belongs to somebody
