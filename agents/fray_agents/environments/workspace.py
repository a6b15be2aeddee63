"""Workspaces on the host: an archive is fetched and unpacked once, and every attempt gets a copy of its own.

An archive is a tar under zstd with files and symbolic links, packed when the job was submitted, or by hand. It is not
trusted: links are created after all files, so nothing is written through a link; its bytes, its entries and the
unpacking time are bounded; and an entry that may lead outside is refused.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import tarfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path, PurePosixPath

from fray_agents.environments.cache import CacheEntry, EnvironmentFailed, HostCache, HostUnfit
from fray_coordinator.core import Core
from fray_coordinator.persist import fails_alone, persist
from fray_layouts.bounds import MAX_WORKSPACE_BYTES, MAX_WORKSPACE_FILES, MAX_WORKSPACE_PATH_BYTES
from fray_layouts.errors import InvalidInput
from fray_layouts.object_keys import BlobKeys
from fray_layouts.spec import WorkspaceSpec
from fray_runtime.directories import in_file_thread

KIND = "workspaces"
"""The kind of these entries in the cache."""

UNPACK_TIMEOUT = 600.0
"""Most seconds for unpacking: the largest workspace at 20 MB/s, which even a slow network disk can write."""

_CHUNK_BYTES = 2**20
"""Bytes of one read. A larger header of an entry is refused: a path has at most a few thousand bytes."""

_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE)
_CODE_MODES = {True: 0o755, False: 0o644}
"""Modes of unpacked files, executable or not; the archive's other mode bits do not count."""

_ARCHIVE_ERRNOS = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EILSEQ, errno.ELOOP)
"""Errors of a file system about names, which the archive causes."""


@asynccontextmanager
async def unpacked(core: Core, cache: HostCache, workspace: WorkspaceSpec) -> AsyncIterator[CacheEntry]:
    """The entry of the cache that holds the unpacked workspace.

    Raises:
        EnvironmentFailed: there is no such workspace, or its archive is not valid.
        HostUnfit: this host takes too long to unpack it.
        UntrustedDirectory, OSError: as `HostCache.hold`.
    """
    if BlobKeys.parse(workspace.blob) is None:
        raise EnvironmentFailed(f"the job's workspace is not valid: {workspace.blob} is not the key of a blob")
    digest = workspace.blob.rpartition("/")[2]

    async def build(directory: Path) -> None:
        archive = await _fetch_archive(core, workspace.blob)
        is_over = False

        def work() -> None:
            ends_at = time.monotonic() + UNPACK_TIMEOUT

            def check() -> None:
                if is_over or time.monotonic() > ends_at:
                    raise HostUnfit(f"the workspace {workspace.blob} was not unpacked within {UNPACK_TIMEOUT:g} s")

            _unpack_checked(archive, digest, directory, check)

        try:
            await in_file_thread(work)
        finally:
            is_over = True  # a thread cannot be cancelled, but it checks this

    async with cache.hold(KIND, digest, build) as entry:
        yield entry


async def copied(core: Core, cache: HostCache, workspace: WorkspaceSpec, target: Path) -> Path:
    """Create an attempt's own copy of the workspace as `target`; raises as `unpacked`."""
    async with unpacked(core, cache, workspace) as entry:
        try:
            await in_file_thread(copy_tree, entry.path, target)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(target)) from error  # names the full disk
    return target


def copy_tree(source: Path, target: Path) -> None:
    """Copy a tree of files and links; file systems that can share blocks copy no bytes.

    There are no hard links: a task that wrote into its copy would change every copy. `target` is created, or is empty.
    """
    target.mkdir(exist_ok=True)
    with os.scandir(source) as entries:
        for entry in entries:
            name = target / entry.name
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), name)
            elif entry.is_dir():
                copy_tree(Path(entry.path), name)
            else:
                _copy_file(entry.path, str(name))


def unpack(archive: bytes, directory: Path, check: Callable[[], None] = lambda: None) -> None:
    """Unpack an archive into an empty directory.

    Args:
        check: called often; an exception of it ends the work.

    Raises:
        EnvironmentFailed: the archive is not one that Fray packs.
        OSError: the host cannot hold it.
    """
    try:
        with closing(_ArchiveBytes(archive)) as content:
            _unpack_entries(content, directory, check)
    except OSError as error:
        if error.errno not in _ARCHIVE_ERRNOS:
            raise
        raise _Unacceptable(f"{error.filename!r}: {error.strerror}") from error
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise _Unacceptable(f"{type(error).__name__}: {error}") from error


class _Unacceptable(EnvironmentFailed):
    """The archive is not one that Fray packs."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the job's workspace cannot be unpacked: {why}; submit it again, without packing it by hand")


async def _fetch_archive(core: Core, key: str) -> bytes:
    try:
        found = await persist(core, lambda: core.store.get(key), fails_alone(core))
    except InvalidInput as error:
        raise EnvironmentFailed(f"the job's workspace cannot be read: {error}") from error
    if found is None:
        raise EnvironmentFailed(f"the job's workspace is gone: there is no object {key}; submit it again")
    return found.data


def _unpack_checked(archive: bytes, digest: str, directory: Path, check: Callable[[], None]) -> None:
    if hashlib.sha256(archive).hexdigest() != digest:
        raise _Unacceptable(f"it is damaged: its {len(archive)} bytes are not those of {digest}")
    unpack(archive, directory, check)


def _unpack_entries(content: _ArchiveBytes, directory: Path, check: Callable[[], None]) -> None:
    links: dict[str, str] = {}
    for count, entry in enumerate(_entries(content), 1):
        check()
        if count > MAX_WORKSPACE_FILES:
            raise _Unacceptable(f"it has more than {MAX_WORKSPACE_FILES:,} entries")
        _check_path(entry.name)
        path = directory / entry.name
        if entry.type == tarfile.SYMTYPE:
            if links.setdefault(entry.name, entry.linkname) != entry.linkname:
                raise _Unacceptable(f"{entry.name!r} occurs twice")
        elif entry.type in _FILES and not entry.issparse():
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_file(content, path, entry, check)
        elif entry.isdir():
            path.mkdir(parents=True, exist_ok=True)
        else:
            raise _Unacceptable(f"{entry.name!r} is neither a file nor a directory nor a symbolic link")
    for name, target in links.items():
        if any(str(parent) in links for parent in PurePosixPath(name).parents):
            raise _Unacceptable(f"{name!r} is below a link")
        _make_link(directory, name, target)
    top = os.path.realpath(directory)
    for name in links:  # only now do links exist that other links lead to
        check()
        if os.path.commonpath([top, os.path.realpath(directory / name)]) != top:
            raise _Unacceptable(f"{name!r} is a link that leads outside")


def _entries(content: _ArchiveBytes) -> Iterator[tarfile.TarInfo]:
    """The entries of the archive; for each file, the content is positioned at its first byte."""
    with tarfile.TarFile(fileobj=content, mode="r", encoding="utf-8", errors="surrogateescape") as tar:
        while (entry := tar.next()) is not None:
            if entry.size < 0:
                raise _Unacceptable(f"{entry.name!r} has a negative size")
            content.seek(entry.offset_data)
            yield entry


def _check_path(name: str) -> None:
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise _Unacceptable(f"{name!r} is not a plain relative path")
    if len(os.fsencode(name)) > MAX_WORKSPACE_PATH_BYTES:
        raise _Unacceptable(f"{name[:100]!r}... is a path of more than {MAX_WORKSPACE_PATH_BYTES:,} bytes")


def _write_file(content: _ArchiveBytes, path: Path, entry: tarfile.TarInfo, check: Callable[[], None]) -> None:
    mode = _CODE_MODES[bool(entry.mode & 0o100)]
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb", buffering=0) as file:
        left = entry.size
        while left:
            check()
            data = content.read(min(left, _CHUNK_BYTES))
            if not data:
                raise _Unacceptable("it ends in the middle of a file")
            left -= file.write(data)


def _make_link(directory: Path, name: str, target: str) -> None:
    path = directory / name
    if os.path.isabs(target) or not target:
        raise _Unacceptable(f"{name!r} is a link to {target!r}, which leads outside")
    path.parent.mkdir(parents=True, exist_ok=True)
    os.symlink(target, path)


class _ArchiveBytes(io.RawIOBase):
    """The decompressed bytes of an archive, which can only be read forwards, up to the limit for a workspace."""

    def __init__(self, archive: bytes) -> None:
        import zstandard  # only here, to keep agents small whose jobs have no workspace

        self._reader = zstandard.ZstdDecompressor().stream_reader(archive)
        self._error = zstandard.ZstdError
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        """The next bytes, fewer only at the end."""
        if not 0 <= size <= _CHUNK_BYTES:
            raise _Unacceptable("it has a header of more than 1 MB")
        try:
            data: bytes = self._reader.read(size)
        except self._error as error:
            raise _Unacceptable(f"it is not a zstd stream: {error}") from error
        self._position += len(data)
        if self._position > MAX_WORKSPACE_BYTES + MAX_WORKSPACE_FILES * tarfile.BLOCKSIZE:
            raise _Unacceptable(f"it unpacks to more than {MAX_WORKSPACE_BYTES:,} bytes")
        return data

    def tell(self) -> int:
        """The number of bytes that were read so far."""
        return self._position

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Skip forwards to a position."""
        if whence != os.SEEK_SET or position < self._position:
            raise _Unacceptable("its entries overlap")
        while self._position < position and self.read(min(_CHUNK_BYTES, position - self._position)):
            pass
        return self._position


def _copy_file(source: str, target: str) -> None:
    with open(source, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        mode = _CODE_MODES[bool(status.st_mode & 0o100)]
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            _copy_bytes(file.fileno(), handle, status.st_size)
        finally:
            os.close(handle)


def _copy_bytes(source: int, target: int, size: int) -> None:
    """Copy within the kernel, which shares the blocks if the file system can."""
    left = size
    try:
        while left:
            left -= os.copy_file_range(source, target, left) or left
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        while left:
            left -= os.sendfile(target, source, size - left, left) or left
