"""Locks between processes of one machine: 256 files under `.fray/locks`, never deleted, taken with `flock`.

A lock belongs to an open file, so every call opens its own descriptor; the lock ends with its holder, even if that is
killed. The kernel knows the holder (`/proc/locks`), but not across containers, so the holder also writes its identity
into the file.
"""

import fcntl
import os
import re
import socket
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fray_coordinator.backoff import backoff
from fray_coordinator.clock import Clock
from fray_coordinator.store.file_tree import LOCK_FOLDER, FileTree, open_file
from fray_coordinator.store.interface import BadObject, NotApplied, Refused

STRIPES = 256
"""Number of lock files: among ten writers of different keys two rarely need the same one, and listing them is quick."""
LOCK_TIMEOUT = 10.0
"""Seconds to wait for a stripe. Holders need milliseconds, so a holder that takes longer is stopped or stuck."""
_HOLDER_BYTES = 100
"""Bytes that a holder writes into its lock file; padding overwrites a longer text of an earlier holder."""
LOCK_PAUSES = (0.0005, 0.02)
"""Seconds between two tries, the first pause and the longest: a holder writes and syncs a file, in 0.5 to 20 ms."""


@dataclass(frozen=True, slots=True, order=True)
class LockHolder:
    """The present holder of a stripe."""

    stripe: str
    who: str


class FileLocks:
    """The lock files of one root."""

    def __init__(self, tree: FileTree, clock: Clock) -> None:
        self._tree = tree
        self._clock = clock
        self._host = socket.gethostname()

    async def acquire(self, key: str) -> int:
        """Take the stripe of `key`; returns the descriptor for `release`. Raises `NotApplied` after `LOCK_TIMEOUT`."""
        stripe = f"{zlib.crc32(key.encode()) % STRIPES:02x}"
        handle = self._open(stripe)
        try:
            await self._wait(handle, stripe)
        except BaseException:
            os.close(handle)
            raise
        with suppress(OSError):  # deletes must work even on a full disk
            os.pwrite(handle, f"pid {os.getpid()} on {self._host}".encode().ljust(_HOLDER_BYTES), 0)
        return handle

    def release(self, handle: int) -> None:
        # Unlocked before it is closed: a child that was forked meanwhile shares the open file and would keep the lock.
        fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)

    def _open(self, stripe: str) -> int:
        with self._tree.private(LOCK_FOLDER) as folder:
            try:
                with suppress(FileNotFoundError):
                    return open_file(folder, stripe, os.O_RDWR)
                with suppress(FileExistsError):
                    self._tree.write(folder, stripe, b"", os.link, synced=False)
                return open_file(folder, stripe, os.O_RDWR)
            except BadObject as error:  # affects more than one key, because many keys share a lock
                raise Refused(f"lock {self._tree.root / LOCK_FOLDER / stripe}: {error}; every user needs it") from error

    async def _wait(self, handle: int, stripe: str) -> None:
        deadline = self._clock.boottime() + LOCK_TIMEOUT
        pauses = backoff(*LOCK_PAUSES)
        while not _try_lock(handle):
            if self._clock.boottime() > deadline:
                path = self._tree.root / LOCK_FOLDER / stripe
                raise NotApplied(f"lock {path} is held by {_holder_text(handle)} for more than {LOCK_TIMEOUT:g} s")
            await self._clock.sleep(next(pauses))


def lock_holders(tree: FileTree) -> Iterator[LockHolder]:
    """Every stripe that is held at this moment, with its holder."""
    with suppress(FileNotFoundError), tree.private(LOCK_FOLDER) as folder:
        for stripe in sorted(os.listdir(folder)):
            try:
                handle = open_file(folder, stripe, os.O_RDWR)
            except BadObject as error:
                yield LockHolder(stripe, f"nobody: {error}")
                continue
            try:
                if _try_lock(handle):
                    fcntl.flock(handle, fcntl.LOCK_UN)
                else:
                    yield LockHolder(stripe, _holder_text(handle))
            finally:
                os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder_text(handle: int) -> str:
    """The holder by the kernel; otherwise what the holder, or the previous one, wrote into the file."""
    status = os.fstat(handle)
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for pid in re.findall(rf"FLOCK +ADVISORY +\w+ +([1-9]\d*) {file} ", Path("/proc/locks").read_text()):
        name = ""
        with suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
        return f"pid {pid} ({name})" if name else f"pid {pid}"
    return os.pread(handle, 2 * _HOLDER_BYTES, 0).decode(errors="replace").strip() or "an unknown process"
