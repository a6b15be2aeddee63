"""Objects as plain files: the work of each verb, and the listing.

Each call blocks, is atomic, and is on the disk when it returns.

Nothing here locks or retries; the errors are those of the operating system, and `BadObject`. A root that lives only as
long as a process on this host need not survive the host's crash. A marker file says so (`forgo_syncs`), and then
nothing waits for the disk.

The listing has every name in order, of any kind, so that fsck can report odd ones. Anything that cannot be an object is
listed like an object store's folder marker, with a name that ends in a slash. That is a folder that this user may not
read, that is deeper than any key, that lies in the inbox, or that is empty and named like a record; and anything whose
name no key can have.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fray_coordinator.store.file_tree import (
    TEMPORARY_FOLDER,
    FilePlacement,
    FileTree,
    open_file,
    open_folder,
    read_all,
    remove_entry,
)
from fray_coordinator.store.interface import (
    ABSENT,
    ANY,
    MAX_FOLDERS,
    PRIVATE_FOLDER,
    Applied,
    BadObject,
    Expectation,
    Listed,
    Object,
    PreconditionFailed,
    check_length,
    max_bytes,
)
from fray_coordinator.store.memory import digest
from fray_layouts.bounds import MAX_KEY_BYTES
from fray_layouts.object_keys import CLUSTER_KEY
from fray_layouts.work_keys import InboxKeys

ABANDONED_SECONDS = 24 * 3600.0
"""Seconds after which a temporary file is a leftover of a killed process."""
_UNSYNCED_MARKER = "unsynced"


def forgo_syncs(folder: Path) -> None:
    """Mark a new root as one that need not survive a crash of its host; all later users of the root see the mark."""
    for made in (folder, folder / PRIVATE_FOLDER):
        made.mkdir(mode=0o700)
    (folder / PRIVATE_FOLDER / _UNSYNCED_MARKER).touch()


class FileObjects:
    """Objects as files of `tree`. synced: whether written data survives a crash of the host."""

    def __init__(self, tree: FileTree) -> None:
        self._tree = tree
        marker = tree.root / PRIVATE_FOLDER / _UNSYNCED_MARKER
        self.synced = not os.path.exists(marker)  # True without the right to see it

    def prepare(self) -> None:
        """Create the private folders; if they exist, remove leftovers of killed processes."""
        self._tree.prepare()
        with self._tree.private(TEMPORARY_FOLDER) as folder:
            for name in os.listdir(folder):
                with suppress(FileNotFoundError):
                    if time.time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime > ABANDONED_SECONDS:
                        remove_entry(folder, name)

    def size(self, key: str) -> int | None:
        """Size of the file in bytes, 0 if it is not known; None if there is no file."""
        try:
            return os.lstat(f"{self._tree.root}/{key}").st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:
            return 0

    def read(self, key: str) -> Object | None:
        try:
            with self._tree.place_of(key) as (folder, name):
                return read_from(folder, name, key)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def create(self, key: str, data: bytes) -> Applied:
        """Create the file, atomically even against plain tools. Raises `PreconditionFailed` if it exists."""
        if self.size(key) is not None:
            raise PreconditionFailed(key)
        if key == CLUSTER_KEY:
            with self._tree.folder(InboxKeys.area, make=True):
                pass  # so that people can `cp` into the inbox of a new root
        return self._place(key, data, _link)

    def replace(self, key: str, data: bytes, expect: Expectation) -> Applied:
        """Overwrite the file; the caller holds the key's lock. Raises `PreconditionFailed`."""
        self._check(key, expect)
        return self._place(key, data, os.replace)

    def delete(self, key: str, expect: Expectation) -> None:
        """Delete the file; the caller holds the key's lock. Raises `PreconditionFailed`."""
        self._check(key, expect)
        with suppress(FileNotFoundError), self._tree.place_of(key) as (folder, name):
            os.unlink(name, dir_fd=folder)
            self._sync(folder)

    def move_aside(self, key: str, expect: Expectation, aside: str) -> None:
        """Rename the file, so that a writer that has it open continues in `aside`. Raises `PreconditionFailed`."""
        self._check(key, expect)
        with self._tree.place_of(key) as (source, name), self._tree.place_of(aside, make=True) as (target, new_name):
            os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)
            self._sync(source)
            self._sync(target)

    def _place(self, key: str, data: bytes, place: FilePlacement) -> Applied:
        with self._tree.place_of(key, make=True) as (folder, name):
            written = self._tree.write(folder, name, data, place, self.synced)
        return Applied(digest(data), written.st_ctime)

    def _check(self, key: str, expect: Expectation) -> None:
        if expect is ANY:
            return
        current = self.read(key)
        if expect != (current.version if current else ABSENT):
            raise PreconditionFailed(key)

    def _sync(self, folder: int) -> None:
        if self.synced:
            os.fsync(folder)


def check_readable(tree: FileTree, key: str) -> None:
    """Raise `BadObject` if the file cannot be read as an object, and `FileNotFoundError` if there is none."""
    with tree.place_of(key) as (folder, name):
        handle = open_file(folder, name)
    try:
        check_length(os.fstat(handle).st_size, max_bytes(key))
    finally:
        os.close(handle)


def read_from(folder: int, name: str, key: str) -> Object:
    """Read the object in an open folder. Raises `FileNotFoundError` and `BadObject`."""
    handle = open_file(folder, name)
    try:
        data = read_all(handle, max_bytes(key))
        return Object(data, digest(data), os.fstat(handle).st_ctime)
    finally:
        os.close(handle)


def _link(source: str, target: str, /, *, src_dir_fd: int, dst_dir_fd: int) -> None:
    try:
        os.link(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
    except FileExistsError:
        raise PreconditionFailed(target) from None


EMPTY_FOLDER_SECONDS = 600.0
"""Seconds after which an empty folder is removed, because normally nobody will put anything into it any more."""
NOT_A_KEY = re.compile("[\r\n\ud800-\udfff]")
"""Characters in names of files dropped by hand that no key can have (surrogates stand for bytes that are not UTF-8)."""


def list_rows(tree: FileTree, prefix: str, after: str | None, versions: bool) -> Iterator[Listed]:
    """The rows under `prefix` and after `after`. With `versions`, the rows of unreadable files have no version."""
    folder = prefix[: prefix.rfind("/") + 1]
    with suppress(FileNotFoundError, NotADirectoryError), tree.folder(folder) as handle:
        yield from _TreeWalk(tree, prefix, after or "", versions).below(handle, folder)


class _TreeWalk:
    def __init__(self, tree: FileTree, prefix: str, after: str, versions: bool) -> None:
        self._tree = tree
        self._prefix = prefix
        self._after = after
        self._versions = versions

    def below(self, handle: int, folder: str) -> Iterator[Listed]:
        """The rows of an open folder."""
        entries = _entries(handle, folder)
        if not entries:
            yield from self._empty(handle, folder)
        for key, is_nameable in entries:
            if not key.startswith(self._prefix):
                continue
            if not is_nameable:
                yield from self._marker(key)
            elif key.endswith("/"):
                yield from self._inside(handle, key)
            elif key > self._after and (row := self._row(handle, key) if self._versions else Listed(key)):
                yield row

    def _inside(self, parent: int, key: str) -> Iterator[Listed]:
        if key <= self._after and not self._after.startswith(key):
            return
        try:
            inner = self._open(parent, key)
        except FileNotFoundError:
            return
        if inner is None:
            yield from self._marker(key)
            return
        try:
            yield from self.below(inner, key)
        finally:
            os.close(inner)

    def _open(self, parent: int, key: str) -> int | None:
        """A descriptor; None for a folder that is not listed."""
        if not _is_entered(key):
            return None
        try:
            return open_folder(key[:-1].rpartition("/")[2], parent)
        except (PermissionError, NotADirectoryError):
            return None

    def _row(self, folder: int, key: str) -> Listed | None:
        """The row with its version; None if the file is gone."""
        try:
            found = read_from(folder, key.rpartition("/")[2], key)
        except FileNotFoundError:
            return None
        except BadObject:
            return Listed(key)
        return Listed(key, found.version, found.updated)

    def _empty(self, handle: int, folder: str) -> Iterator[Listed]:
        """Remove a folder that has been empty for a while; a create in it at this moment is retried."""
        if not self._prefix or folder in ("", InboxKeys.area):
            return
        if time.time() - os.fstat(handle).st_mtime > EMPTY_FOLDER_SECONDS:
            with suppress(OSError), self._tree.place_of(folder[:-1]) as (parent, name):
                os.rmdir(name, dir_fd=parent)
        elif folder.endswith(".json/"):
            yield from self._marker(folder)

    def _marker(self, folder: str) -> Iterator[Listed]:
        if folder > self._after:
            yield Listed(folder)


def _is_entered(folder: str) -> bool:
    if folder.startswith(InboxKeys.area):
        return folder in (InboxKeys.area, InboxKeys.rejected_prefix, InboxKeys.aside_prefix)
    return folder.count("/") <= MAX_FOLDERS and len(folder.encode()) <= MAX_KEY_BYTES


def _entries(handle: int, folder: str) -> list[tuple[str, bool]]:
    """(key, whether it is a possible key) of each entry of a folder.

    Folders end in a slash, so that they sort where their contents do.
    """
    with os.scandir(handle) as entries:
        return sorted(_entry(folder, entry) for entry in entries if folder or entry.name != PRIVATE_FOLDER)


def _entry(folder: str, entry: os.DirEntry[str]) -> tuple[str, bool]:
    if NOT_A_KEY.search(entry.name):
        escaped = os.fsencode(entry.name).decode(errors="backslashreplace").replace("\r", "\\r").replace("\n", "\\n")
        return f"{folder}{escaped}/", False
    return folder + entry.name + ("/" if entry.is_dir(follow_symlinks=False) else ""), True


def unreadable_files(tree: FileTree) -> Iterator[tuple[str, str]]:
    """(name, reason) of each file below a root that cannot be read as an object; opens every file, and reads none."""
    for row in list_rows(tree, "", None, versions=False):
        if row.key.endswith("/"):
            yield row.key, "it is no folder of Fray's, or this user cannot read it"
            continue
        try:
            with suppress(FileNotFoundError):
                check_readable(tree, row.key)
        except BadObject as error:
            yield row.key, str(error)
