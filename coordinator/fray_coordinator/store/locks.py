"""Locks between processes of one machine: 256 files under `.fray/locks`, never deleted, taken with `flock`.

A lock belongs to the open file, so every call opens its own descriptor; it ends with its holder, however that dies.
The holder writes who it is into the file, so that whoever waits too long can name it.
"""

from __future__ import annotations

import fcntl
import os
import socket
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fray_coordinator.clock import Clock
from fray_coordinator.store.api import NotApplied

STRIPES = 256
DEADLINE = 10.0
"""Seconds to wait for a stripe: holders need milliseconds, so one that takes longer is stopped or stuck."""
FIRST_PAUSE = 0.0005
LONGEST_PAUSE = 0.02


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """Who has a stripe right now, in the words that it left there."""

    stripe: str
    who: str


class Locks:
    """The lock files of one root."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._host = socket.gethostname()

    async def acquire(self, key: str) -> int:
        """Take the stripe of `key`; returns the descriptor for `release`. Raises `NotApplied` after `DEADLINE`."""
        path = self._folder / f"{zlib.crc32(key.encode()) % STRIPES:02x}"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            await self._wait(handle, path)
        except BaseException:
            os.close(handle)
            raise
        with suppress(OSError):  # on a full disk it must still be possible to delete
            os.pwrite(handle, f"pid {os.getpid()} on {self._host}".encode().ljust(100), 0)
        return handle

    def release(self, handle: int) -> None:
        # Unlocked before it is closed: a child forked meanwhile shares the open file and would keep the lock.
        fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)

    async def _wait(self, handle: int, path: Path) -> None:
        deadline = self._clock.boottime() + DEADLINE
        pause = FIRST_PAUSE
        while not _try(handle):
            if self._clock.boottime() > deadline:
                raise NotApplied(f"lock {path} is held by {_who(handle)} for more than {DEADLINE:g} s")
            await self._clock.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 2)


def holders(folder: Path) -> Iterator[Holder]:
    """Every stripe that somebody holds at this moment."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if _try(handle):
                fcntl.flock(handle, fcntl.LOCK_UN)
            else:
                yield Holder(path.name, _who(handle))
        finally:
            os.close(handle)


def _try(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _who(handle: int) -> str:
    return os.pread(handle, 200, 0).decode(errors="replace").strip() or "an unknown process"
