"""The folders and files of a local root, opened step by step, so that no link is followed and no open blocks.

The root's own mode decides who may use it and everything that Fray makes below it. With the set-group-id bit and `rwx`
for the group, that is the group (2770, 0660); otherwise only the owner (0700, 0600). Umasks have no effect: a new file
or folder gets its mode under a private name and is then moved into place.
"""

import errno
import grp
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from fray_coordinator.store.interface import PRIVATE_FOLDER, BadObject, Refused, check_length
from fray_layouts.errors import InvalidInput

LEAST_FREE = 8 * 10**6
"""Bytes that must be free to start work: for a job's files, some chunks of its log, its record and its result."""

FULL_REMEDY = (
    "remove files there, or use a larger disk: until then nothing is written, and jobs that have ended still show as "
    "running"
)


def lack_of_room(folder: Path) -> str:
    """A sentence about what the disk of `folder` lacks, for people; "" if there is room or the check fails."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return ""
    free = disk.f_bavail * disk.f_frsize
    total = disk.f_blocks * disk.f_frsize
    if total < LEAST_FREE:
        least = LEAST_FREE / 10**6
        return f"the disk of {folder} is too small: it has {total / 10**6:.1f} MB, and {least:,.0f} MB have to be free"
    if free < LEAST_FREE:
        return f"the disk of {folder} is full: {free / 10**6:.1f} of its {total / 10**6:,.0f} MB are free"
    if disk.f_files and not disk.f_favail:
        return f"the disk of {folder} is full: it can take no more files ({disk.f_files:,} are there)"
    return ""


LOCK_FOLDER = f"{PRIVATE_FOLDER}/locks/"
TEMPORARY_FOLDER = f"{PRIVATE_FOLDER}/tmp/"

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_INNER_FOLDER_FLAGS = _FOLDER_FLAGS | os.O_NOFOLLOW
FILE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_FILE_ERRORS = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO, errno.ENODEV)
_EXISTS_ERRORS = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
"""Errors when a folder is moved into place: another process has made it, perhaps filled it, or made something else."""

_GROWTH_BYTES = 64 * 1024
"""Bytes to read beyond the size that a file had when it was opened, in case it grows."""
_KIND_NAMES = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class FilePlacement(Protocol):
    """`os.link` or `os.replace`: the operation that gives a finished file its name."""

    def __call__(self, source: str, target: str, /, *, src_dir_fd: int, dst_dir_fd: int) -> None: ...


class FileTree:
    """The folders and files below `root`. Keys are relative to it; a folder's key ends in a slash, the root's is "".

    Raises the operating system's own errors, and `BadObject` for anything that readers and writers must not touch.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        """Create the root and the private folders. Raises `Refused` if the root's owner could not read new files."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileNotFoundError as error:  # from /proc, not from a file that has just disappeared
            raise Refused(f"{self.root} cannot be created: {error.strerror}; give a folder on a disk") from error
        status = os.stat(self.root)
        if status.st_uid != os.geteuid() and not is_shared(status.st_mode):
            raise Refused(
                f"{self.root} belongs to user {status.st_uid} alone; work there as that user, or make it a group's "
                f"(docs/operating.md)"
            )
        for folder in (f"{PRIVATE_FOLDER}/", LOCK_FOLDER, TEMPORARY_FOLDER):
            self._make_private(folder)

    def is_prepared(self) -> bool:
        return os.path.lexists(self.root / TEMPORARY_FOLDER)

    @contextmanager
    def folder(self, folder: str, make: bool = False) -> Iterator[int]:
        """A descriptor of a folder, which is closed at the end of the block.

        Args:
            make: create missing folders on the way, but never the root.

        Raises `BadObject` for a link on the way and for a folder that this user may not read. If that folder is the
        root or directly below it, `PermissionError`, because more than one object is out of reach.
        """
        handle = self._open(folder, make)
        try:
            yield handle
        finally:
            os.close(handle)

    @contextmanager
    def private(self, folder: str) -> Iterator[int]:
        """Like `folder`, for a private folder. Raises `Refused` if it cannot be used, because every write needs it."""
        try:
            handle = self._open(folder, make=False)
        except BadObject as error:
            raise Refused(f"{self.root / folder}: {error}") from error
        try:
            yield handle
        finally:
            os.close(handle)

    @contextmanager
    def place_of(self, key: str, make: bool = False) -> Iterator[tuple[int, str]]:
        """(descriptor of the key's folder, name in the folder)."""
        head, slash, name = key.rpartition("/")
        with self.folder(head + slash, make) as handle:
            yield handle, name

    def write(self, folder: int, name: str, data: bytes, place: FilePlacement, synced: bool) -> os.stat_result:
        """Write a temporary file and give it its name with `place`; returns its status."""
        mode = 0o660 if self.is_shared() else 0o600
        with self._temporary() as (private, temporary):
            handle = os.open(temporary, CREATE_FLAGS, mode, dir_fd=private)
            try:
                os.fchmod(handle, mode)
                _write(handle, data)
                if synced:
                    os.fsync(handle)
                place(temporary, name, src_dir_fd=private, dst_dir_fd=folder)
                if synced:
                    os.fsync(folder)
                return os.fstat(handle)
            finally:
                os.close(handle)

    def is_shared(self) -> bool:
        return is_shared(os.stat(self.root).st_mode)

    def _open(self, folder: str, make: bool) -> int:
        handle = os.open(self.root, _FOLDER_FLAGS)
        for depth, name in enumerate(folder.split("/")[:-1]):
            try:
                inner = self._step(handle, name, make)
            except PermissionError as error:
                if not depth:
                    raise
                raise BadObject(f"{folder} cannot be read by this user: {error.strerror}") from error
            finally:
                os.close(handle)
            handle = inner
        return handle

    def _step(self, handle: int, name: str, make: bool) -> int:
        try:
            return open_folder(name, handle)
        except FileNotFoundError:
            if not make:
                raise
            self._make(handle, name)
            return open_folder(name, handle)
        except NotADirectoryError:
            if stat.S_ISLNK(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
                raise BadObject(f"{name} is a link, which is not followed") from None
            raise

    def _make(self, parent: int, name: str) -> None:
        with self._temporary() as (private, temporary):
            os.mkdir(temporary, 0o700, dir_fd=private)
            os.chmod(temporary, self._folder_mode(), dir_fd=private)
            try:
                os.rename(temporary, name, src_dir_fd=private, dst_dir_fd=parent)
            except OSError as error:
                if error.errno not in _EXISTS_ERRORS:
                    raise

    def _make_private(self, folder: str) -> None:
        with suppress(FileExistsError), self.place_of(folder.rstrip("/")) as (parent, name):
            os.mkdir(name, 0o700, dir_fd=parent)
            os.chmod(name, self._folder_mode(), dir_fd=parent)

    def _folder_mode(self) -> int:
        return 0o2770 if self.is_shared() else 0o700

    @contextmanager
    def _temporary(self) -> Iterator[tuple[int, str]]:
        """(descriptor of the folder of unfinished files, a new name in it); removes what is left under that name."""
        name = uuid.uuid4().hex
        with self.private(TEMPORARY_FOLDER) as handle:
            try:
                yield handle, name
            finally:
                remove_entry(handle, name)


def is_shared(mode: int) -> bool:
    """Whether a root of this mode is shared with its group, which then owns and may change everything in it."""
    return bool(mode & stat.S_ISGID) and mode & stat.S_IRWXG == stat.S_IRWXG


def open_folder(name: str, parent: int) -> int:
    """A descriptor of a folder in an open one. Raises `NotADirectoryError`, also for a link."""
    return os.open(name, _INNER_FOLDER_FLAGS, dir_fd=parent)


def open_file(folder: int, name: str, how: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file. Raises `BadObject` for anything else, and for files this user may not open."""
    _check_kind(os.stat(name, dir_fd=folder, follow_symlinks=False), name)  # opening a device may have an effect
    try:
        handle = os.open(name, how | FILE_FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno not in _FILE_ERRORS:
            raise
        raise BadObject(f"{name} cannot be opened: {error.strerror}") from error
    try:
        _check_kind(os.fstat(handle), name)
    except BaseException:
        os.close(handle)
        raise
    return handle


def read_all(handle: int, limit: int) -> bytes:
    """Read the whole file. Raises `BadObject` for more than `limit` bytes, without reading more."""
    size = os.fstat(handle).st_size
    parts: list[bytes] = []
    length = 0
    while True:
        check_length(max(size, length), limit)
        part = os.read(handle, min(size - length if size > length else _GROWTH_BYTES, limit - length) + 1)
        if not part:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        parts.append(part)
        length += len(part)


def remove_entry(folder: int, name: str) -> None:
    """Remove a file or an empty folder, if it is there."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        with suppress(FileNotFoundError):
            os.rmdir(name, dir_fd=folder)


def _check_kind(status: os.stat_result, name: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BadObject(
            f"{name} is {_KIND_NAMES.get(stat.S_IFMT(status.st_mode), 'something odd')}, not a regular file"
        )


def _write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def give_to_group(folder: Path, group: str) -> None:
    """Make `folder`, which must be absent or empty, a root of the group. Raises `InvalidInput`."""
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        raise InvalidInput(
            "group", group, "give the name of a group of this host, as `getent group` shows it"
        ) from None
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    if _group_of(folder) == gid:
        return
    if any(folder.iterdir()):
        remedy = (
            f"{folder} is not empty; give it to the group by hand: chgrp -R {group} {folder}; "
            f"chmod -R u+rwX,g+rwX,o-rwx {folder}; find {folder} -type d -exec chmod g+s {{}} +"
        )
        raise InvalidInput("group", group, remedy)
    with suppress(PermissionError):
        os.chown(folder, -1, gid)
        os.chmod(folder, 0o2770)
    if _group_of(folder) != gid:  # the system silently drops the set-group-id bit
        remedy = f"{folder} can be given to it by its owner, who must be one of the group, or by root"
        raise InvalidInput("group", group, remedy)


def _group_of(folder: Path) -> int | None:
    status = os.stat(folder)
    return status.st_gid if is_shared(status.st_mode) else None
