"""Reads files that a task left and that may be anything: a link, a FIFO, a device, or far too large."""

from __future__ import annotations

import os
import stat

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}


class NotReadable(OSError):
    """Something other than a regular file, or a file larger than the limit."""


def file_size(path: str) -> int:
    """Bytes of the file at `path`.

    Raises:
        FileNotFoundError: nothing is there.
        NotReadable: it is not a regular file.
    """
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "a device")
        raise NotReadable(f"{os.path.basename(path)} is {kind}, not a file")
    return found.st_size


def read_file(path: str, limit: int) -> bytes:
    """The bytes of the file at `path`; it never waits for a writer and never follows a link.

    Raises:
        OSError: as `file_size`, or the file has more than `limit` bytes.
    """
    file_size(path)
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise NotReadable(f"{os.path.basename(path)} has more than {limit:,} bytes")
    return data
