"""Many small files in one go, by as few system calls as it takes, in the thread of the caller.

Each verb makes one attempt at every name and says which ones it is sure of. Nothing is raised and nothing repeated: the
other names are left to the verbs of `LocalBackend`, which find out what became of them. So these may be used where a
name's object never changes (a create decides, equal bytes under many names are links of one file), or is void whatever
it holds (a delete).

Folders stay open from one call to the next, and each is compared with what lies under its path before it is used.
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
"""Bytes of a file that is read here: what a caller waits for without noticing."""
MAX_OPEN_FOLDERS = 8
"""Folders that stay open: a queue's producers and consumers work in two at a time, each a second of it."""
_NOT_SURE = (OSError, BadObject, Refused)


class _OpenFolder:
    """A folder that is open until nobody refers to it, so that no thread closes what another one uses."""

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
        synced: whether what is written has to survive a crash of the host.
    """

    def __init__(self, tree: FileTree, synced: bool) -> None:
        self._tree = tree
        self._synced = synced
        self._open: dict[str, _OpenFolder] = {}
        self._token, self._numbers = uuid.uuid4().hex, count()

    def create(self, keys: Sequence[str], data: bytes) -> dict[str, Applied]:
        """Create files that all hold `data`; those that were created, by key."""
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
        """The files that are there and small, by key."""
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
        """Delete files, whatever they hold; the keys that are absent now."""
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
        """Link the file to each name that is free; a folder is synced before its names count."""
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
        return None  # opening a device may do something to it
    handle = os.open(name, os.O_RDONLY | FILE_FLAGS, dir_fd=folder)
    try:
        data = os.read(handle, MAX_READ_BYTES + 1)
    finally:
        os.close(handle)
    return Object(data, digest(data), status.st_ctime) if len(data) == status.st_size else None
