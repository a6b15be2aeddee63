"""The host's cache: directories that are built once, and used by every agent of this user until space is needed.

An entry is `<root>/<kind>/<key>/` with a file `lock`, and with `content` once it is complete. A process that builds or
removes an entry holds an exclusive lock on the file `lock`, and a process that uses it a shared one. When a process
dies, the kernel releases its locks. A directory that is still being built has another name, which is never used again.
The next builder removes it, so a writer that outlives its builder does no harm.

The lock file holds the host's boot id at the time of the build, and the entry's size; its mtime is the time of the last
use. An entry of an earlier boot is built again: after a power failure, files that were never synced may be empty.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fray_agents.runner.meter import disk_sizes
from fray_coordinator.backoff import backoff
from fray_layouts.errors import FrayError, Permanent, Temporary
from fray_runtime.directories import cache_dir, in_file_thread, private_dir, remove_tree, try_lock

MAX_EXPLANATION = 2000
"""Most characters of a tool's own message, uv's or an engine's, in the job's record; the job's log has all of it."""


class PreparationFailed(FrayError):
    """An attempt's environment could not be prepared. log: output of the preparation, if there was any."""

    log: Path | None = None


class EnvironmentFailed(PreparationFailed, Permanent):
    """The job's environment cannot be built on any host; the job fails at once and uses no retry."""


class HostUnfit(PreparationFailed, Temporary):
    """This host cannot prepare the job's environment now; another one may."""


DEFAULT_LIMIT = 20 * 10**9
"""Most bytes of a cache on a large disk: some ten environments with PyTorch."""

DISK_SHARE = 5
"""Divisor of a smaller disk's size: the cache may use a fifth, and the rest is for the tasks."""

LOCK_PAUSES = (0.002, 0.05)
"""Seconds between two checks of an entry that another process builds, the first and the longest: a check takes
microseconds, and a whole warm start takes 300 ms."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,199}")
_LOCK, _CONTENT, _BUILDING, _REMOVED = "lock", "content", "building", "~"

Build = Callable[[Path], Awaitable[None]]
"""Fills the empty directory that it is given. The directory is renamed later, so nothing in it may contain its path.

When cancelled, it has to end the processes that it has started; anything that they still write is lost."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A complete entry. path: of its content; size: bytes on disk; last_used: seconds since 1970."""

    kind: str
    key: str
    path: Path
    size: int
    last_used: float


class HostCache:
    """The cache below one directory, which other processes of this user may use at the same time.

    Args:
        root: created at the first use; its parent exists.
        limit: bytes on disk beyond which the least recently used entries are removed. Entries in use stay.
    """

    def __init__(self, root: Path, limit: int) -> None:
        self.root = root
        self.limit = limit

    @asynccontextmanager
    async def hold(self, kind: str, key: str, build: Build) -> AsyncIterator[CacheEntry]:
        """Hold an entry, which stays as long as the context does; it is built if it does not exist.

        Only one process of the host builds an entry at a time. If it fails, the error is raised there, and the next
        process tries.

        Args:
            kind, key: the entry's name; the same name always means the same content.
            build: creates the content.

        Raises:
            UntrustedDirectory: the cache is not this user's alone.
            OSError: the host lacks some resource; if its disk was full, all unused entries were removed.
            Exception: any error of `build`.
        """
        folder = self._folder(kind, key)
        lock = await self._lock(folder, build)
        try:
            entry = _complete_entry(folder)
            assert entry is not None, "a locked entry is not removed"
            os.utime(lock)
            yield entry
        finally:
            with suppress(OSError):  # a full disk
                os.utime(lock)
            _unlock(lock)

    def entries(self) -> list[CacheEntry]:
        """The complete entries, in the order of their last use."""
        found = [entry for folder in self._folders() if (entry := _complete_entry(folder)) is not None]
        return sorted(found, key=lambda entry: entry.last_used)

    async def trim(self, limit: int | None = None) -> list[CacheEntry]:
        """Remove incomplete entries, and unused ones until the rest has at most `limit` bytes.

        Args:
            limit: by default that of the cache.

        Returns:
            The complete entries that were removed.
        """
        max_bytes = self.limit if limit is None else limit
        for folder in await in_file_thread(lambda: [found for found in self._folders() if not _is_complete(found)]):
            await _remove(folder)
        entries = await in_file_thread(self.entries)
        total = sum(entry.size for entry in entries)
        removed = []
        for entry in entries:
            if total <= max_bytes:
                break
            if await _remove(entry.path.parent):
                total -= entry.size
                removed.append(entry)
        return removed

    def _folder(self, kind: str, key: str) -> Path:
        for name in (kind, key):
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} cannot name an entry of the cache")
        return self.root / kind / key

    def _folders(self) -> Iterator[Path]:
        with suppress(FileNotFoundError):
            for kind in self.root.iterdir():
                with suppress(FileNotFoundError, NotADirectoryError):
                    yield from filter(Path.is_dir, kind.iterdir())

    async def _lock(self, folder: Path, build: Build) -> int:
        """A shared lock on the entry, which is complete."""
        pauses = backoff(*LOCK_PAUSES)
        while (lock := _lock_complete(folder)) is None:
            if not await self._build(folder, build):
                await asyncio.sleep(next(pauses))
        return lock

    async def _build(self, folder: Path, build: Build) -> bool:
        """Build the entry; False if another process builds, uses or removes it now."""
        for directory in (self.root, folder.parent, folder):
            private_dir(directory)
        lock = try_lock(folder / _LOCK, fcntl.LOCK_EX, os.O_CREAT)
        if lock is None:
            return False
        try:
            if not _is_complete(folder):
                await _build_content(folder, lock, build)
                await self.trim()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                await self.trim(0)
                raise OSError(error.errno, error.strerror, str(self.root)) from error  # says which disk
            raise
        finally:
            _unlock(lock)
        return True


def host_cache(limit: int | None = None) -> HostCache:
    """This user's cache.

    Args:
        limit: see `HostCache`; None: `DEFAULT_LIMIT`, or `DISK_SHARE` of a small disk.

    Raises:
        UntrustedDirectory: it is not this user's alone.
    """
    parent = cache_dir()
    if limit is None:
        limit = min(DEFAULT_LIMIT, shutil.disk_usage(parent).total // DISK_SHARE)
    return HostCache(parent / "built", limit)


async def _build_content(folder: Path, lock: int, build: Build) -> None:
    building = folder / f"{_BUILDING}-{secrets.token_hex(8)}"
    try:
        for left in os.listdir(folder):
            if left != _LOCK:
                await remove_tree(folder / left)
        building.mkdir(mode=0o700)
        await build(building)
        size = await in_file_thread(lambda: sum(disk_sizes(str(building))))
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{_boot()} {size}\n".encode(), 0)
        building.rename(folder / _CONTENT)
    except BaseException:
        await remove_tree(building)
        raise


async def _remove(folder: Path) -> bool:
    """Remove the entry; whether it is gone. False if a process uses or builds it."""
    if _REMOVED not in folder.name:
        lock = try_lock(folder / _LOCK, fcntl.LOCK_EX, os.O_CREAT)
        if lock is None:
            return folder.name not in os.listdir(folder.parent)
        try:  # renamed first, so that a process that wants the entry from now on starts with a new directory
            os.rename(folder, removed := folder.with_name(f"{folder.name}{_REMOVED}{secrets.token_hex(8)}"))
            folder = removed
        finally:
            _unlock(lock)
    await remove_tree(folder)
    return True


def _lock_complete(folder: Path) -> int | None:
    """A shared lock on the complete entry; None if it is not complete, or a process builds or removes it."""
    if not _is_complete(folder):
        return None
    lock = try_lock(folder / _LOCK, fcntl.LOCK_SH)
    if lock is not None and not _is_complete(folder):
        _unlock(lock)
        return None
    return lock


def _unlock(lock: int) -> None:
    # Unlocked before closing: a child that was forked meanwhile shares the open file and would keep the lock.
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def _is_complete(folder: Path) -> bool:
    return _complete_entry(folder) is not None


def _complete_entry(folder: Path) -> CacheEntry | None:
    """The entry in `folder`; None if it is not complete, from an earlier boot, or being removed."""
    content = folder / _CONTENT
    if _REMOVED in folder.name or not content.is_dir():
        return None
    try:
        boot, size = (folder / _LOCK).read_text().split()
        used = (folder / _LOCK).stat().st_mtime
    except (FileNotFoundError, ValueError):
        return None
    return CacheEntry(folder.parent.name, folder.name, content, int(size), used) if boot == _boot() else None


def _boot() -> str:
    """The kernel's boot id, which changes with each start of the host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
