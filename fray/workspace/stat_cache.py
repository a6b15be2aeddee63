"""A cache of packed folders on this user's machine, so that an unchanged folder is neither read nor packed again.

A folder counts as unchanged if it has the same files with the same kind, size, times and inode. Among the times is that
of the last status change (`ctime`), which programs cannot set.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fray.workspace.selection import WorkspaceFile
from fray_agents.host.directories import UntrustedDirectory, cache_dir, private_dir

_FORMAT = 1
"""Version of the cache's entries and of the archive. If it changes, all folders are packed again."""

_COARSE, _FINE = 2.0, 0.05
"""Seconds after a file's change in which another change may leave its times as they are: on file systems that count in
steps of one or two seconds, and on all others, which count in the kernel's ticks of at most 10 ms."""

_MAX_FOLDERS = 1000
"""Folders that are remembered at most, each in a file of some 300 bytes. It is far more than a user works in."""


class PackedFolder(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The entry of a folder that was packed.

    Attributes:
        digest: sha256 of the archive, in hexadecimal digits.
        size: size of the archive in bytes.
        files: number of files in it.
        dependencies, python: as in `Project`.
        fingerprint: fingerprint of the files when they were packed.
    """

    digest: str
    size: int
    files: int
    dependencies: str = ""
    python: str = ""
    fingerprint: str = ""


def fingerprint(files: Sequence[WorkspaceFile]) -> str:
    """A digest that changes when any of the files does."""
    seen = hashlib.sha256(b"%d" % _FORMAT)
    for name, status in files:
        of_content = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)
        seen.update(repr((os.fsencode(name), status.st_mode, of_content)).encode())
    return seen.hexdigest()


def is_settled(files: Sequence[WorkspaceFile], now: float) -> bool:
    """Whether a change of any file after `now`, seconds since the epoch, changes the fingerprint."""
    newest = max(file.status.st_ctime_ns for file in files)
    margin = _COARSE if newest % 10**9 == 0 else _FINE
    return newest / 10**9 < now - margin


def recall(folder: Path, files: Sequence[WorkspaceFile]) -> PackedFolder | None:
    """The entry of a folder, if the folder has not changed since it was packed; else None."""
    try:
        known = msgspec.json.decode(_file_of(folder).read_bytes(), type=PackedFolder)
    except (OSError, UntrustedDirectory, msgspec.DecodeError):
        return None
    return known if known.fingerprint == fingerprint(files) else None


def remember(folder: Path, files: Sequence[WorkspaceFile], packed: PackedFolder, listed_at: float) -> None:
    """Store a folder's entry. If it cannot be stored, the folder is packed again the next time.

    Args:
        files: the files before they were packed.
        listed_at: time at which `files` were listed, in seconds since the epoch.
    """
    if not is_settled(files, listed_at):
        return
    noted = msgspec.structs.replace(packed, fingerprint=fingerprint(files))
    with contextlib.suppress(OSError, UntrustedDirectory):
        file = _file_of(folder)
        handle, part = tempfile.mkstemp(dir=file.parent)
        with open(handle, "wb") as out:
            out.write(msgspec.json.encode(noted))
        os.replace(part, file)
        _forget_oldest(file.parent)


def _file_of(folder: Path) -> Path:
    name = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()
    return private_dir(cache_dir() / "packed") / f"{name}.json"


def _forget_oldest(directory: Path) -> None:
    kept = sorted(directory.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in kept[_MAX_FOLDERS:]:
        file.unlink(missing_ok=True)
