"""The archive of a workspace, a tar compressed with zstd, and the cache of folders that were packed.

With the cache on this user's machine an unchanged folder is neither read nor packed again. A folder counts as unchanged
if it has the same files with the same kind, size, times and inode. Among the times is that of the last status change
(`ctime`), which programs cannot set.

The same files always give the same bytes. An archive has only files and links, in the order of their names' bytes,
without times and owners. The mode is 0755 if the owner may execute the file, else 0644. So the archive's digest
identifies its content.
"""

import contextlib
import hashlib
import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from fray.workspace.selection import IGNORE_FILE, WorkspaceFile
from fray_layouts.bounds import MAX_WORKSPACE_BYTES, MAX_WORKSPACE_FILES, MAX_WORKSPACE_PATH_BYTES
from fray_layouts.errors import InvalidInput
from fray_layouts.units import format_bytes, parse_bytes
from fray_runtime.directories import UntrustedDirectory, cache_dir, private_dir
from fray_runtime.variables import read_variable

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


LIMIT_VARIABLE = "FRAY_WORKSPACE_LIMIT"
DEFAULT_LIMIT = 100 * 10**6
"""Bytes that a packed workspace may have, unless FRAY_WORKSPACE_LIMIT is set. Code has a hundredth of that. Larger
workspaces contain data, which jobs should read from where it is stored."""

_NAMED_IN_ERROR = 10
"""Number of the largest files that the error for a too large workspace names: usually the data is among them."""

_LEVEL = 3
"""Compression level, zstd's default. It packs code to a fifth at hundreds of MB per second."""

_CHUNK = 2**20
"""Bytes that are read at once: enough that the calls cost little, and still little memory."""


@dataclass(frozen=True)
class Archive:
    """The bytes of a packed workspace, and their sha256 in hexadecimal digits."""

    data: bytes
    digest: str


def workspace_limit() -> int:
    """The number of bytes that a packed workspace may have."""
    return parse_bytes(LIMIT_VARIABLE, read_variable(LIMIT_VARIABLE) or str(DEFAULT_LIMIT))


def check_size(folder: Path, files: Sequence[WorkspaceFile], packed: int) -> None:
    """Raise InvalidInput, which names the largest files, if a workspace is too large. packed: packed bytes so far."""
    limit = workspace_limit()
    unpacked = sum(file.status.st_size for file in files)
    if len(files) > MAX_WORKSPACE_FILES:
        what = f"it has {len(files)} files, more than the {MAX_WORKSPACE_FILES} that are allowed"
    elif unpacked > MAX_WORKSPACE_BYTES:
        what = f"it has {format_bytes(unpacked)}, more than the {format_bytes(MAX_WORKSPACE_BYTES)} that are allowed"
    elif packed > limit:
        what = f"packed it has more than {format_bytes(limit)}"
    else:
        return
    largest = sorted(files, key=lambda file: file.status.st_size, reverse=True)[:_NAMED_IN_ERROR]
    named = ", ".join(f"{file.name} ({format_bytes(file.status.st_size)})" for file in largest)
    remedy = f"list what the job does not need in {IGNORE_FILE}, or raise {LIMIT_VARIABLE}; the largest are {named}"
    raise InvalidInput("workspace", str(folder), f"{what}; {remedy}")


def packed(folder: Path, files: Sequence[WorkspaceFile]) -> Archive:
    """Pack the files of a folder. It never has more than the limit of packed bytes in memory.

    Raises:
        InvalidInput: the workspace is too large, a file cannot be read, a path is too long, or a link leads out of the
            folder.
    """
    import zstandard

    check_size(folder, files, 0)
    limit = workspace_limit()
    compressor = zstandard.ZstdCompressor(level=_LEVEL).compressobj()
    out = io.BytesIO()
    for chunk in _tar(folder, files):
        out.write(compressor.compress(chunk))
        if out.tell() > limit:
            check_size(folder, files, out.tell())
    out.write(compressor.flush())
    check_size(folder, files, out.tell())
    data = out.getvalue()
    return Archive(data, hashlib.sha256(data).hexdigest())


def _tar(folder: Path, files: Sequence[WorkspaceFile]) -> Iterator[bytes]:
    for file in files:
        if len(os.fsencode(file.name)) > MAX_WORKSPACE_PATH_BYTES:
            remedy = f"its path has more than {MAX_WORKSPACE_PATH_BYTES} bytes; shorten it, or list it in {IGNORE_FILE}"
            raise InvalidInput("workspace", file.name, remedy)
        if file.is_link:
            yield _header(file, link=_target(folder, file.name))
        else:
            yield from _content(folder, file)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _header(file: WorkspaceFile, size: int = 0, link: str = "") -> bytes:
    info = tarfile.TarInfo(file.name)
    info.size = size
    info.mode = 0o755 if file.status.st_mode & stat.S_IXUSR else 0o644
    if link:
        info.type, info.linkname = tarfile.SYMTYPE, link
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _content(folder: Path, file: WorkspaceFile) -> Iterator[bytes]:
    """The header and the current bytes of a file."""
    try:
        handle = os.open(f"{folder}/{file.name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidInput(
            "workspace",
            file.name,
            f"it cannot be read ({error.strerror}); make it readable, or list it in {IGNORE_FILE}",
        ) from None
    with open(handle, "rb") as opened:
        size = left = os.fstat(handle).st_size
        yield _header(file, size)
        while left and (chunk := opened.read(min(left, _CHUNK))):
            left -= len(chunk)
            yield chunk
    if left:
        raise InvalidInput("workspace", file.name, "it became shorter while it was packed; submit again")
    yield bytes(-size % tarfile.BLOCKSIZE)


def _target(folder: Path, name: str) -> str:
    """The target of a link. Both its text and the resolved path must stay inside of the folder."""
    target = os.readlink(f"{folder}/{name}")
    below = os.path.normpath(str(PurePosixPath(name).parent / target))
    top = os.path.realpath(folder)
    leaves = os.path.isabs(target) or below == ".." or below.startswith("../")
    if leaves or os.path.commonpath([top, os.path.realpath(f"{folder}/{name}")]) != top:
        remedy = (
            f"it is a link to {target}, which leaves the folder; copy the target, or list the link in {IGNORE_FILE}"
        )
        raise InvalidInput("workspace", name, remedy)
    return target
