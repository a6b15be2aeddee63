"""The directories of the Unix sockets through which callers on the same host reach actor servers."""

import contextlib
import errno
import os
import socket
import time
from pathlib import Path

from fray_agents.host.directories import host_dir, private_dir, user_dir

_MAX_DIR_LENGTH = 80
"""Bytes of the longest path of a directory for sockets. The path of a socket itself may have 107 bytes (unix(7))."""

_MIN_STALE_AGE = 60.0
"""Least age in seconds of a socket that is removed. The server of a newer one may be about to listen."""


def socket_dir(task_dir: str | None) -> Path:
    """Return a directory for Unix sockets that only this user can enter, and create it if it is absent.

    It is in the task's directory, which the agent removes. Outside of tasks, or if that path is too long, it is in the
    user's directory; if TMPDIR makes that one too long as well, it is under `/tmp`.

    Raises:
        UntrustedDirectory: another user could write there.
    """
    if task_dir is not None and _is_short(task_dir):
        return private_dir(Path(task_dir, "rpc"))
    directory = user_dir("rpc")
    return directory if _is_short(directory) else host_dir("rpc")


def _is_short(directory: str | Path) -> bool:
    return len(os.fsencode(directory)) <= _MAX_DIR_LENGTH


def remove_stale_sockets(directory: Path) -> None:
    """Remove the sockets that no server listens on any more."""
    for path in directory.glob("*.sock"):
        with contextlib.suppress(FileNotFoundError):  # another server was faster
            if time.time() - path.stat().st_mtime > _MIN_STALE_AGE and not _listens(path):
                path.unlink()


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) != errno.ECONNREFUSED  # other errors, as of a full queue, mean a listener
