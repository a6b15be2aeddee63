"""A user of the root who knows nothing of Fray: malformed objects, odd kinds of file, and changed metadata.

These have names of their own and harm only themselves: the cluster continues, and `fray fsck` names them.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fray_coordinator.core import Core
from fray_coordinator.errors import StoreRefused, StoreUnavailable
from fray_coordinator.store.interface import ANY
from fray_layouts.errors import InvalidInput
from fray_layouts.index_keys import PlacementKey
from fray_layouts.object_keys import JobKeys
from fray_layouts.records import JobRecord
from tests.simulation.strangers import is_misfit
from tests.support.malformed_objects import Odd, odd_object, waiting_owner

SPARSE = 200 * 10**9
"""Bytes that a sparse file seems to have."""

HOURS = 5 * 3600.0
"""Seconds by which the times of files are moved, as by a clock that was set."""

FOLDERS = ("jobs", "agents", "inbox", "pending/default", "coordinator", "blobs", "work")


@dataclass(slots=True)
class Poisoner:
    """Leaves malformed objects and odd files, again and again.

    Args:
        folder: the root itself, if it is a folder on this machine.

    Attributes:
        struck: count of each kind that was left.
        left: keys and bodies of the objects that were left.
        files: odd kinds of file, and whether each is listed as an object; a folder is not.
    """

    core: Core
    folder: Path | None
    rng: random.Random
    struck: Counter[str] = field(default_factory=Counter)
    left: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, bool] = field(default_factory=dict)

    async def act(self, pause: float, ends: Callable[[], bool]) -> None:
        """Leave something every `pause` seconds or so."""
        while not ends():
            await asyncio.sleep(pause * self.rng.uniform(0.5, 1.5))
            if self.folder is not None and self.rng.random() < 0.4:
                await asyncio.to_thread(self.rng.choice([self._leave_file, self._change_metadata]), self.folder)
            elif self.rng.random() < 0.2:
                await self._leave(waiting_owner(self.rng), "contradictory owner")
            else:
                await self._leave([odd_object(self.rng)], "odd object")

    def is_ours(self, job: JobRecord) -> bool:
        """Whether the job is not made from an object of the poisoner."""
        strange = JobKeys.key(job.id) in self.left or (job.inbox is not None and job.inbox.key in self.left)
        return not strange

    def unnamed(self, told: Iterable[str]) -> list[str]:
        """The objects that are not what their names say and that `fray fsck` did not name."""
        named = set(told)
        misfits = [key for key, data in self.left.items() if is_misfit(key, data)]
        files = [key for key, is_object in self.files.items() if is_object]
        return sorted(key for key in (*misfits, *files) if not _is_named(key, named))

    async def clean_up(self) -> None:
        """Take everything away again."""
        for key in self.left:
            await self.core.store.delete(key)
        if self.folder is not None:
            self._clean_up_files(self.folder)
        self.left.clear()
        self.files.clear()

    def _clean_up_files(self, root: Path) -> None:
        for key in self.files:
            path = root / key
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for key in self.left:
            for folder in (root / key).parents:
                if folder == root or not folder.is_dir() or any(folder.iterdir()):
                    break
                folder.rmdir()

    async def _leave(self, objects: list[Odd], kind: str) -> None:
        for odd in objects:
            try:
                rings = odd.key == PlacementKey.bell
                if not rings and await self.core.store.get(odd.key) is not None:
                    return
                await self.core.store.put(odd.key, odd.data, ANY)
            except (InvalidInput, StoreRefused, StoreUnavailable):
                return  # the storage does not accept the name, or does not answer now
            if not rings:
                self.left[odd.key] = odd.data
        self.struck[kind] += 1

    def _leave_file(self, root: Path) -> None:
        """Leave a file that is not regular, with the name of an object."""
        folder = self.rng.choice(FOLDERS)
        key = f"{folder}/stranger-{self.rng.randrange(10**9)}.json"
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = self.rng.choice([_fifo, _socket, _link_to_zero, _link_to_file, _sparse, _folder, _deep_folder])
        kind(path)
        self.files[key] = not path.is_dir()
        self.struck["odd kind of file"] += 1

    def _change_metadata(self, root: Path) -> None:
        """Change only the times of everything, like `chmod -R` and `touch`: to now, or to hours before or after."""
        time_then = time.time() + self.rng.choice([0.0, -HOURS, HOURS])
        for path in root.rglob("*"):
            try:
                if path.is_file() and not path.is_symlink():
                    os.chmod(path, path.stat().st_mode & 0o777)
                    os.utime(path, (time_then, time_then))
            except FileNotFoundError:  # renamed or removed meanwhile
                continue
        self.struck["metadata changed"] += 1


def _is_named(key: str, named: set[str]) -> bool:
    """Whether fsck named the key or the folder that it is in."""
    return key in named or any(key.startswith(told) for told in named if told.endswith("/"))


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        here = os.open(path.parent, os.O_RDONLY)  # the whole path may be too long for a socket's address
        try:
            sock.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)


def _link_to_zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _link_to_file(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(SPARSE)


def _folder(path: Path) -> None:
    path.mkdir()


def _deep_folder(path: Path) -> None:
    (path / Path(*["deep"] * 200)).mkdir(parents=True)
