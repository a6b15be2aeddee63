"""Disks that are full or read-only, as mounts of their own if this user may mount."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

SIZE = "64m"


@cache
def may_mount() -> bool:
    """Whether mounting works here; in a container, the user's rights alone do not show that."""
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(["mount", "-t", "tmpfs", "chaos", folder], capture_output=True, check=False)
        if tried.returncode == 0:
            _unmount(Path(folder))
        return tried.returncode == 0


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=0700", "chaos", str(folder)], check=True)
    try:
        yield
    finally:
        _unmount(folder)


@contextmanager
def without_rights(folder: Path) -> Iterator[None]:
    """Make `folder` read-only. It is mounted read-only, because rights alone would not stop root."""
    if not may_mount():
        folder.chmod(0o500)
        yield
        folder.chmod(0o700)
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,mode=0700", "chaos", str(folder)], check=True)
    try:
        yield
    finally:
        _unmount(folder)


async def fill(folder: Path, seconds: float) -> None:
    """Leave no room on the disk of `folder` for `seconds`."""
    ballast = folder / ".ballast"
    try:
        await asyncio.to_thread(_write_all, ballast)
        await asyncio.sleep(seconds)
    finally:
        ballast.unlink()


def _write_all(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
