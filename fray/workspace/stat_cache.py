"""A cache of packed folders on this user's machine: an unchanged one is neither read nor packed again.

A folder is unchanged if the same files have the same kind, size, times and inode; the time of the last change of status
(`ctime`), which programs cannot set, is among these.
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
"""Of what is remembered and of the archive: another number makes all folders be packed again."""

_COARSE, _FINE = 2.0, 0.05
"""Seconds after a file's last change in which another one may leave its times as they are: on file systems that count
whole seconds (or two), and on all others, which count by the kernel's ticks of at most 10 ms."""

_MOST_FOLDERS = 1000
"""Folders that are remembered, each in a file of some 300 bytes: far more than anybody works in."""


class PackedFolder(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a folder was packed to.

    Attributes:
        digest: of the archive, sha256 in hexadecimal digits.
        size: of the archive, in bytes.
        files: how many it holds.
        dependencies, python: as in `Project`.
        fingerprint: of the files when they were packed.
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
    """What the folder was packed to, if it has not changed since."""
    try:
        known = msgspec.json.decode(_file_of(folder).read_bytes(), type=PackedFolder)
    except (OSError, UntrustedDirectory, msgspec.DecodeError):
        return None
    return known if known.fingerprint == fingerprint(files) else None


def remember(folder: Path, files: Sequence[WorkspaceFile], became: PackedFolder, looked_at: float) -> None:
    """Keep what the folder was packed to. Where nothing can be kept it is packed anew the next time.

    Args:
        files: as they were before they were packed, at the time `looked_at`.
    """
    if not is_settled(files, looked_at):
        return
    noted = msgspec.structs.replace(became, fingerprint=fingerprint(files))
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
    for file in kept[_MOST_FOLDERS:]:
        file.unlink(missing_ok=True)
