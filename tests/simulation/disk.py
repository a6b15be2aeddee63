"""A host's disk in memory: the part of `pathlib.Path` that agents and tasks use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiskPath:
    """A path on one host's disk. `mishap` may raise where a file is used."""

    files: dict[str, bytes]
    path: str = ""
    mishap: Callable[[str], None] = lambda place: None

    def __truediv__(self, part: str) -> DiskPath:
        return DiskPath(self.files, f"{self.path}/{part}", self.mishap)

    def __str__(self) -> str:
        return self.path

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: folders need not exist here."""

    def exists(self) -> bool:
        return self.path in self.files

    def read_bytes(self) -> bytes:
        self.mishap("file")
        return self.files[self.path]

    def write_bytes(self, data: bytes) -> None:
        self.mishap("file")
        self.files[self.path] = data

    def unlink(self, missing_ok: bool = False) -> None:
        self.mishap("file")
        del self.files[self.path]

    def rmdir(self) -> None:
        """Remove it with all files in it."""
        self.rmtree()

    def rmtree(self) -> None:
        for path in [p for p in self.files if p.startswith(self.path + "/")]:
            del self.files[path]
