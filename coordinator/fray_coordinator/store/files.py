"""The file calls under the local backend: each one blocks, is atomic, and is on the disk when it returns.

Nothing here locks or retries; errors are the operating system's own. A root that ends with a process on this host need
not survive the host's crash: it says so in a file of its own (`forgo_syncs`), and nobody waits for its disk.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from fray_coordinator.store.api import ABSENT, ANY, Applied, Expectation, Listed, Object, PreconditionFailed
from fray_coordinator.store.keys import PRIVATE_FOLDER
from fray_coordinator.store.memory import digest
from fray_layouts.names import CLUSTER, Inbox, Secrets

ABANDONED = 24 * 3600.0
"""Seconds after which a temporary file belongs to a process that was killed."""
EMPTY = 600.0
"""Seconds after which nobody will put anything into an empty folder, as a rule."""
NOT_A_KEY = re.compile("[\r\n\ud800-\udfff]")
"""In names of files dropped by hand: what no key can contain (surrogates stand for bytes that are not UTF-8)."""


_UNSYNCED = "unsynced"


def forgo_syncs(folder: Path) -> None:
    """Say of a new root that it need not survive a crash of its host, to all who open it after this."""
    (folder / PRIVATE_FOLDER).mkdir(parents=True)
    (folder / PRIVATE_FOLDER / _UNSYNCED).touch()


class Files:
    """Objects as files below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._synced = not os.path.exists(folder / PRIVATE_FOLDER / _UNSYNCED)  # False without the right to look
        self.locks = folder / PRIVATE_FOLDER / "locks"
        self._temporary = folder / PRIVATE_FOLDER / "tmp"
        self._folder = str(folder)

    def prepare(self) -> None:
        """Make the private folders; where they are, sweep what killed processes left."""
        if not self._temporary.is_dir():
            self._make_folder(str(self.locks))
            self._make_folder(str(self._temporary))
        for path in self._temporary.iterdir():
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > ABANDONED:
                    path.unlink()

    def size(self, key: str) -> int | None:
        """Bytes of the object; None when there is none."""
        try:
            return os.stat(self._path(key)).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, key: str) -> Object | None:
        try:
            with open(self._path(key), "rb", buffering=0) as file:
                data = file.readall()
                return Object(data, digest(data), os.fstat(file.fileno()).st_ctime)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def create(self, key: str, data: bytes) -> Applied:
        """Raises `PreconditionFailed` when the name exists; atomic even against tools that take no lock."""
        if os.path.lexists(self._path(key)):
            raise PreconditionFailed(key)
        if key == CLUSTER:
            self._make_folder(os.path.dirname(self._path(Inbox.prefix)))  # a plain `cp` into the new root finds it
        return self._place(key, data, _link)

    def replace(self, key: str, data: bytes, expect: Expectation) -> Applied:
        """Write over what is there; the caller holds the name's lock. Raises `PreconditionFailed`."""
        self._check(key, expect)
        return self._place(key, data, os.replace)

    def delete(self, key: str, expect: Expectation) -> None:
        """The caller holds the name's lock. Raises `PreconditionFailed`."""
        if self.size(key) is None:
            return
        self._check(key, expect)
        os.unlink(self._path(key))
        self._sync_folder(os.path.dirname(self._path(key)))

    def move_aside(self, key: str, expect: Expectation, aside: str) -> None:
        """Rename, so that a writer that has the file open goes on writing to `aside`. Raises `PreconditionFailed`."""
        source, target = self._path(key), self._path(aside)
        if self.size(key) is None:
            return
        self._check(key, expect)
        self._make_folder(os.path.dirname(target))
        with suppress(FileNotFoundError):
            os.rename(source, target)
        self._sync_folder(os.path.dirname(source))
        self._sync_folder(os.path.dirname(target))

    def rows(self, prefix: str, after: str | None, versions: bool) -> Iterator[Listed]:
        for key in self._walk(prefix[: prefix.rfind("/") + 1], prefix, after or ""):
            if not versions:
                yield Listed(key)
            elif current := self.read(key):
                yield Listed(key, current.version, current.updated)

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[str]:
        entries = self._entries(folder)
        if not entries and prefix and folder not in ("", Inbox.prefix):
            self._sweep(folder)
        for key in entries:
            if not key.startswith(prefix):
                continue
            if not key.endswith("/"):
                if key > after:
                    yield key
            elif key > after or after.startswith(key):
                yield from self._walk(key, prefix, after)

    def _sweep(self, folder: str) -> None:
        """Remove a folder that has been empty for a while; who creates in it right now is told to try again."""
        with suppress(OSError):
            if time.time() - os.stat(self._path(folder)).st_mtime > EMPTY:
                os.rmdir(self._path(folder))

    def _entries(self, folder: str) -> list[str]:
        """What a folder holds, as keys. Folders end in a slash, which puts them where their contents sort."""
        try:
            with os.scandir(self._path(folder)) as entries:
                return sorted(
                    folder + entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "")
                    for entry in entries
                    if (folder or entry.name != PRIVATE_FOLDER) and not NOT_A_KEY.search(entry.name)
                )
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _place(self, key: str, data: bytes, place: Callable[[str, str], None]) -> Applied:
        target, secret = self._path(key), key.startswith(Secrets.prefix)
        temporary = f"{self._temporary}/{uuid.uuid4().hex}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        handle = os.open(temporary, flags, 0o600 if secret else 0o666)
        try:
            _write(handle, data)
            if self._synced:
                os.fsync(handle)
            self._make_folder(os.path.dirname(target))
            if secret:
                os.chmod(os.path.dirname(target), 0o700)
            place(temporary, target)
            self._sync_folder(os.path.dirname(target))
            return Applied(digest(data), os.fstat(handle).st_ctime)
        finally:
            os.close(handle)
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def _check(self, key: str, expect: Expectation) -> None:
        if expect is ANY:
            return
        current = self.read(key)
        if expect != (current.version if current else ABSENT):
            raise PreconditionFailed(key)

    def _make_folder(self, path: str) -> None:
        if not os.path.isdir(path):
            self._make_folder(os.path.dirname(path))
            with suppress(FileExistsError):
                os.mkdir(path)
            self._sync_folder(os.path.dirname(path))

    def _sync_folder(self, path: str) -> None:
        if not self._synced:
            return
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def _path(self, key: str) -> str:
        return f"{self._folder}/{key}"


def _link(temporary: str, target: str) -> None:
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise PreconditionFailed(target) from None
    os.unlink(temporary)


def _write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
