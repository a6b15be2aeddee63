"""Stores workspaces. Each content is stored once, by one create-only write."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakKeyDictionary

from fray.workspace.archive import Archive, PackedFolder, check_size, packed, recall, remember
from fray.workspace.projects import read_project
from fray.workspace.selection import WorkspaceFile, workspace_files
from fray_coordinator.core import Core
from fray_coordinator.store.interface import ABSENT
from fray_coordinator.store.store import Store
from fray_layouts.object_keys import BlobKeys
from fray_layouts.spec import WorkspaceSpec
from fray_layouts.units import files_text

_SHOWN_DIGITS = 12
"""Digits of a digest that are shown to people: enough to tell any two of their archives apart."""

_stored: WeakKeyDictionary[Store, set[str]] = WeakKeyDictionary()
"""Keys of the archives that this process has found or stored. An archive stays for the month in its key at least."""


@dataclass(frozen=True)
class StoredWorkspace:
    """A workspace that is in the storage.

    Attributes:
        names: the paths of its files and links below the folder.
        python: the specifier of the project's Python versions; "" for any.
        uploaded: whether it was uploaded now; False if it was in the storage before.
    """

    folder: Path
    spec: WorkspaceSpec
    python: str
    uploaded: bool
    names: frozenset[str] = field(default=frozenset(), repr=False)

    def __str__(self) -> str:
        digest = self.spec.blob.rpartition("/")[2][:_SHOWN_DIGITS]
        how = "uploaded" if self.uploaded else "already there"
        return f"workspace {self.folder}: {files_text(self.spec.files, self.spec.size)}, sha256 {digest}, {how}"


async def store_workspace(core: Core, folder: Path) -> StoredWorkspace:
    """Pack a folder unless an unchanged one was packed before, and store the archive unless it is in the storage.

    Raises:
        InvalidInput: as `workspace_files`, `packed` and `read_project`.
    """
    month_of, listed_at = core.now(), time.time()
    files = await asyncio.to_thread(workspace_files, folder)
    known = await asyncio.to_thread(recall, folder, files)
    if known is not None and await _is_stored(core, BlobKeys.key(month_of, known.digest)):
        check_size(folder, files, known.size)
        return _described(folder, known, month_of, files, uploaded=False)
    archive, entry = await asyncio.to_thread(_pack, folder, files, listed_at)
    key = BlobKeys.key(month_of, entry.digest)
    if is_new := not await _is_stored(core, key):
        await core.store.put(key, archive.data, ABSENT)
        _stored.setdefault(core.store, set()).add(key)
    return _described(folder, entry, month_of, files, uploaded=is_new)


def _pack(folder: Path, files: Sequence[WorkspaceFile], listed_at: float) -> tuple[Archive, PackedFolder]:
    project = read_project(folder, {file.name for file in files})
    archive = packed(folder, files)
    entry = PackedFolder(
        digest=archive.digest,
        size=len(archive.data),
        files=len(files),
        dependencies=project.dependencies,
        python=project.python,
    )
    remember(folder, files, entry, listed_at)
    return archive, entry


async def _is_stored(core: Core, key: str) -> bool:
    known = _stored.setdefault(core.store, set())
    if key not in known and any(row.key == key for row in await core.store.list(key, limit=1)):
        known.add(key)
    return key in known


def _described(
    folder: Path, entry: PackedFolder, month_of: float, files: Sequence[WorkspaceFile], uploaded: bool
) -> StoredWorkspace:
    spec = WorkspaceSpec(
        blob=BlobKeys.key(month_of, entry.digest),
        size=entry.size,
        files=entry.files,
        dependencies=entry.dependencies,
    )
    return StoredWorkspace(folder, spec, entry.python, uploaded, frozenset(file.name for file in files))
