"""Objects as plain files: the work of each verb. Each call blocks, is atomic, and is on the disk when it returns.

Nothing here locks or retries; the errors are those of the operating system, and `BadObject`. A root that lives only as
long as a process on this host need not survive the host's crash. A marker file says so (`forgo_syncs`), and then
nothing waits for the disk.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

from fray_coordinator.store.file_tree import (
    TEMPORARY_FOLDER,
    FilePlacement,
    FileTree,
    open_file,
    read_all,
    remove_entry,
)
from fray_coordinator.store.interface import ABSENT, ANY, Applied, Expectation, Object, PreconditionFailed
from fray_coordinator.store.key_rules import PRIVATE_FOLDER, check_length, max_bytes
from fray_coordinator.store.memory import digest
from fray_layouts.inbox_keys import InboxKeys
from fray_layouts.object_keys import CLUSTER_KEY

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
