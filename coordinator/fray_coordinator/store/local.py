"""Objects as plain files: `<root>/<key>` holds exactly the object's bytes, so people may `cat` and `cp` them.

The version is the digest of the content. A file's inode and times cannot be a version, because a quick change and back
leaves them equal, and a counter beside the file would miss files that people drop by hand. Every body of a record is
unique, because it has the id of its write, so equal content means that nothing happened: the same rule as on S3.

A create links a finished file into place, which is atomic even against plain tools. A change takes the key's lock,
compares, and renames a finished file over the old one. Reads take no lock. File and folder are synced before the
answer.

Unlike on object stores, a key cannot also be the folder of other keys. Only regular files are objects, and no link is
followed below the root: a person who may drop a file into the inbox must not choose what an agent reads.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from fray_coordinator.clock import Clock
from fray_coordinator.store.file_batches import FileBatches
from fray_coordinator.store.file_locks import FileLocks, LockHolder, lock_holders
from fray_coordinator.store.file_objects import FileObjects, list_rows, unreadable_files
from fray_coordinator.store.file_tree import FULL_REMEDY, FileTree
from fray_coordinator.store.interface import (
    ABSENT,
    NOT_MODIFIED,
    Applied,
    BadObject,
    Expectation,
    Listed,
    NotApplied,
    NotModified,
    Object,
    Refused,
    Unknown,
    Version,
)

T = TypeVar("T")

THREAD_BYTES = 64 * 1024
"""Bytes from which file calls run in a thread. The switch costs 0.1 ms; reading this much takes 0.15 ms."""


class LocalBackend:
    """The backend of local files below `folder`, which the first write creates."""

    scheme = "file"
    local = True

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.root = folder.as_uri()
        self.folder = folder
        self.address = f"file://{os.fsencode(os.path.realpath(folder)).decode(errors='backslashreplace')}"
        self._tree = FileTree(folder)
        self._files = FileObjects(self._tree)
        self._locks = FileLocks(self._tree, clock)
        self._batches = FileBatches(self._tree, self._files.synced)
        self._prepared = False

    @property
    def batches(self) -> FileBatches | None:
        """The batches; None before the first write, which checks whether this user may write here."""
        return self._batches if self._prepared else None

    async def get(self, key: str) -> Object | None:
        with _translated_errors(key):
            size = self._files.size(key)
            if size is None:
                self._check_presence()
                return None
            return await _run_in_thread_if_large(size, partial(self._files.read, key))

    async def get_if_changed(self, key: str, version: Version | None) -> Object | NotModified | None:
        current = await self.get(key)
        return NOT_MODIFIED if current is not None and current.version == version else current

    async def put(self, key: str, data: bytes, expect: Expectation) -> Applied:
        with _translated_errors(key):
            self._prepare()
            if expect is ABSENT:
                return await _run_in_thread_if_large(len(data), partial(self._files.create, key, data))
            return await self._locked(key, len(data), partial(self._files.replace, key, data, expect))

    async def delete(self, key: str, expect: Expectation) -> None:
        with _translated_errors(key):
            if self._files.size(key) is not None:
                self._prepare()
                await self._locked(key, 0, partial(self._files.delete, key, expect))

    async def withdraw(self, key: str, expect: Version, aside: str) -> None:
        with _translated_errors(key):
            await _run_in_thread_if_large(
                self._files.size(key) or 0, partial(self._files.move_aside, key, expect, aside)
            )

    async def list(self, prefix: str, after: str | None, limit: int | None, versions: bool) -> list[Listed]:
        with _translated_errors(prefix):
            found = await asyncio.to_thread(lambda: list(islice(list_rows(self._tree, prefix, after, versions), limit)))
            if not found:
                self._check_presence()
            return found

    def holders(self) -> Iterator[LockHolder]:
        return lock_holders(self._tree)

    def unreadable_files_below(self) -> Iterator[tuple[str, str]]:
        """(name, reason) of each file below the root that cannot be read as an object; blocks."""
        return unreadable_files(self._tree)

    def server_offset(self) -> float | None:
        """The file system of this machine uses this machine's time."""
        return 0.0

    async def close(self) -> None:
        self._batches.close()

    def _prepare(self) -> None:
        if not self._prepared:
            self._files.prepare()
            self._prepared = True

    def _check_presence(self) -> None:
        """Raise `NotApplied` if the root has disappeared: files on a missing disk may still exist."""
        if self._prepared and not self._tree.is_prepared():
            raise NotApplied(f"{self.folder} has disappeared: was it moved, or its disk unmounted?")

    async def _locked(self, key: str, size: int, work: Callable[[], T]) -> T:
        """Run `work` under the key's lock. `work` itself releases the lock, even if the caller is cancelled before."""
        size = max(size, self._files.size(key) or 0)
        handle = await self._locks.acquire(key)

        def work_and_release() -> T:
            try:
                return work()
            finally:
                self._locks.release(handle)

        return await _run_in_thread_if_large(size, work_and_release)


async def _run_in_thread_if_large(size: int, work: Callable[[], T]) -> T:
    if size < THREAD_BYTES:
        return work()
    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, work))


@contextmanager
def _translated_errors(key: str) -> Iterator[None]:
    """Turn the operating system's errors into outcomes of the attempt."""
    try:
        yield
    except BadObject as error:
        raise BadObject(f"{key}: {error}") from error
    except OSError as error:
        text = f"{key}: {error.strerror} ({error.filename})" if error.filename else f"{key}: {error.strerror}"
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                raise NotApplied(f"{text}; {FULL_REMEDY}") from error
            case errno.EMFILE | errno.ENFILE | errno.ENOENT:
                raise NotApplied(text) from error
            case errno.EACCES | errno.EPERM | errno.EROFS:
                raise Refused(f"{text}; this user needs the right to read and write below the root") from error
            case errno.ENOTDIR | errno.EISDIR | errno.EEXIST | errno.ENOTEMPTY:
                raise BadObject(f"{text}; local files cannot hold a key that is also the folder of others") from error
            case errno.EIO:
                raise Unknown(text) from error
        raise Refused(text) from error
