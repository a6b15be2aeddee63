"""Batches of small files, read or written in the caller's thread with as few system calls as possible.

Each verb makes one attempt at every name and returns the names that certainly succeeded. It raises nothing and repeats
nothing: the verbs of `LocalBackend` handle all other names and find out their state. So a batch may only be used
where an object never changes (a create is final; equal bytes under many names are links of one file), or where its
content does not matter (a delete).

Folders stay open between calls, and each is compared with what lies at its path before it is used.
"""

import os
import stat
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count, groupby

from fray_coordinator.store.file_tree import CREATE_FLAGS, FILE_FLAGS, TEMPORARY_FOLDER, FileTree
from fray_coordinator.store.interface import Applied, BadObject, Object, Refused
from fray_coordinator.store.memory import digest

MAX_READ_BYTES = 64 * 1024
"""Bytes of a file that is read here; the caller does not notice the time for so few."""
MAX_OPEN_FOLDERS = 8
"""Folders that stay open. A queue's producers and consumers use two at a time, each for a second."""
_NOT_SURE = (OSError, BadObject, Refused)


class _OpenFolder:
    """A folder that stays open until nobody refers to it, so that no thread closes it while another uses it."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.status = os.fstat(handle)

    def is_at(self, path: str) -> bool:
        with suppress(OSError):
            return os.path.samestat(os.stat(path, follow_symlinks=False), self.status)
        return False

    def __del__(self) -> None:
        os.close(self.handle)


class FileBatches:
    """The batches of one root.

    Args:
        synced: whether written data must survive a crash of the host.
    """

    def __init__(self, tree: FileTree, synced: bool) -> None:
        self._tree = tree
        self._synced = synced
        self._open: dict[str, _OpenFolder] = {}
        self._token, self._numbers = uuid.uuid4().hex, count()

    def create(self, keys: Sequence[str], data: bytes) -> dict[str, Applied]:
        """Create files that all hold `data`; returns the created ones, by key."""
        created: dict[str, Applied] = {}
        with suppress(*_NOT_SURE):
            mode = 0o660 if self._tree.is_shared() else 0o600
            private = self._folder(TEMPORARY_FOLDER, False).handle
            name = f"{self._token}-{os.getpid()}-{next(self._numbers)}"
            handle = os.open(name, CREATE_FLAGS, mode, dir_fd=private)
            try:
                os.fchmod(handle, mode)
                if os.write(handle, data) != len(data):
                    return {}
                if self._synced:
                    os.fsync(handle)
                self._link(keys, private, name, Applied(digest(data), os.fstat(handle).st_ctime), created)
            finally:
                os.close(handle)
                os.unlink(name, dir_fd=private)
        return created

    def read(self, keys: Iterable[str]) -> dict[str, Object]:
        """Read the files that exist and are small; returns them by key."""
        found: dict[str, Object] = {}
        for folder, names in _by_folder(keys):
            with suppress(*_NOT_SURE):
                handle = self._folder(folder, False).handle
                for name in names:
                    try:
                        read = _read(handle, name)
                    except OSError:
                        continue
                    if read is not None:
                        found[folder + name] = read
        return found

    def delete(self, keys: Iterable[str]) -> set[str]:
        """Delete files, whatever they hold; returns the keys that are certainly absent now."""
        absent: set[str] = set()
        for folder, names in _by_folder(keys):
            with suppress(*_NOT_SURE):
                handle, gone = self._folder(folder, False).handle, set()
                for name in names:
                    try:
                        os.unlink(name, dir_fd=handle)
                    except FileNotFoundError:
                        pass
                    except OSError:
                        continue
                    gone.add(folder + name)
                if self._synced:
                    os.fsync(handle)
                absent |= gone
        return absent

    def close(self) -> None:
        """Close the folders; the next call opens them again."""
        self._open = {}

    def _link(
        self, keys: Sequence[str], private: int, temporary: str, applied: Applied, into: dict[str, Applied]
    ) -> None:
        """Link the file to each free name; names are only reported in `into` after their folder was synced."""
        for folder, names in _by_folder(keys):
            handle, linked = self._folder(folder, True).handle, []
            for name in names:
                try:
                    os.link(temporary, name, src_dir_fd=private, dst_dir_fd=handle)
                except OSError:
                    continue
                linked.append(folder + name)
            if self._synced:
                os.fsync(handle)
            into.update(dict.fromkeys(linked, applied))

    def _folder(self, folder: str, make: bool) -> _OpenFolder:
        opened = self._open.get(folder)
        if opened is None or not opened.is_at(f"{self._tree.root}/{folder[:-1]}"):
            with self._tree.folder(folder, make) as handle:
                opened = _OpenFolder(os.dup(handle))
            if len(self._open) >= MAX_OPEN_FOLDERS:
                self._open = {}
            self._open[folder] = opened
        return opened


def _by_folder(keys: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    for folder, group in groupby((key.rpartition("/") for key in keys), lambda parts: parts[0]):
        yield f"{folder}/", [parts[2] for parts in group]


def _read(folder: int, name: str) -> Object | None:
    """A small regular file; None for anything else."""
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_READ_BYTES:
        return None  # opening a device may have an effect
    handle = os.open(name, os.O_RDONLY | FILE_FLAGS, dir_fd=folder)
    try:
        data = os.read(handle, MAX_READ_BYTES + 1)
    finally:
        os.close(handle)
    return Object(data, digest(data), status.st_ctime) if len(data) == status.st_size else None
