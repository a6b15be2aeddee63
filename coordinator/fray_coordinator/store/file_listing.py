"""The listing of a local root: every name in order, of any kind, so that fsck can report odd ones.

Anything that cannot be an object is listed like an object store's folder marker, with a name that ends in a slash. That
is a folder that this user may not read, that is deeper than any key, that lies in the inbox, or that is empty and named
like a record; and anything whose name no key can have.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress

from fray_coordinator.store.file_objects import check_readable, read_from
from fray_coordinator.store.file_tree import FileTree, open_folder
from fray_coordinator.store.interface import BadObject, Listed
from fray_coordinator.store.key_rules import MAX_FOLDERS, PRIVATE_FOLDER
from fray_layouts.bounds import MAX_KEY_BYTES
from fray_layouts.inbox_keys import InboxKeys

EMPTY_FOLDER_SECONDS = 600.0
"""Seconds after which an empty folder is removed, because normally nobody will put anything into it any more."""
NOT_A_KEY = re.compile("[\r\n\ud800-\udfff]")
"""Characters in names of files dropped by hand that no key can have (surrogates stand for bytes that are not UTF-8)."""


def list_rows(tree: FileTree, prefix: str, after: str | None, versions: bool) -> Iterator[Listed]:
    """The rows under `prefix` and after `after`. With `versions`, the rows of unreadable files have no version."""
    folder = prefix[: prefix.rfind("/") + 1]
    with suppress(FileNotFoundError, NotADirectoryError), tree.folder(folder) as handle:
        yield from _TreeWalk(tree, prefix, after or "", versions).below(handle, folder)


class _TreeWalk:
    def __init__(self, tree: FileTree, prefix: str, after: str, versions: bool) -> None:
        self._tree = tree
        self._prefix = prefix
        self._after = after
        self._versions = versions

    def below(self, handle: int, folder: str) -> Iterator[Listed]:
        """The rows of an open folder."""
        entries = _entries(handle, folder)
        if not entries:
            yield from self._empty(handle, folder)
        for key, is_nameable in entries:
            if not key.startswith(self._prefix):
                continue
            if not is_nameable:
                yield from self._marker(key)
            elif key.endswith("/"):
                yield from self._inside(handle, key)
            elif key > self._after and (row := self._row(handle, key) if self._versions else Listed(key)):
                yield row

    def _inside(self, parent: int, key: str) -> Iterator[Listed]:
        if key <= self._after and not self._after.startswith(key):
            return
        try:
            inner = self._open(parent, key)
        except FileNotFoundError:
            return
        if inner is None:
            yield from self._marker(key)
            return
        try:
            yield from self.below(inner, key)
        finally:
            os.close(inner)

    def _open(self, parent: int, key: str) -> int | None:
        """A descriptor; None for a folder that is not listed."""
        if not _is_entered(key):
            return None
        try:
            return open_folder(key[:-1].rpartition("/")[2], parent)
        except (PermissionError, NotADirectoryError):
            return None

    def _row(self, folder: int, key: str) -> Listed | None:
        """The row with its version; None if the file is gone."""
        try:
            found = read_from(folder, key.rpartition("/")[2], key)
        except FileNotFoundError:
            return None
        except BadObject:
            return Listed(key)
        return Listed(key, found.version, found.updated)

    def _empty(self, handle: int, folder: str) -> Iterator[Listed]:
        """Remove a folder that has been empty for a while; a create in it at this moment is retried."""
        if not self._prefix or folder in ("", InboxKeys.area):
            return
        if time.time() - os.fstat(handle).st_mtime > EMPTY_FOLDER_SECONDS:
            with suppress(OSError), self._tree.place_of(folder[:-1]) as (parent, name):
                os.rmdir(name, dir_fd=parent)
        elif folder.endswith(".json/"):
            yield from self._marker(folder)

    def _marker(self, folder: str) -> Iterator[Listed]:
        if folder > self._after:
            yield Listed(folder)


def _is_entered(folder: str) -> bool:
    if folder.startswith(InboxKeys.area):
        return folder in (InboxKeys.area, InboxKeys.rejected_prefix, InboxKeys.aside_prefix)
    return folder.count("/") <= MAX_FOLDERS and len(folder.encode()) <= MAX_KEY_BYTES


def _entries(handle: int, folder: str) -> list[tuple[str, bool]]:
    """(key, whether it is a possible key) of each entry of a folder.

    Folders end in a slash, so that they sort where their contents do.
    """
    with os.scandir(handle) as entries:
        return sorted(_entry(folder, entry) for entry in entries if folder or entry.name != PRIVATE_FOLDER)


def _entry(folder: str, entry: os.DirEntry[str]) -> tuple[str, bool]:
    if NOT_A_KEY.search(entry.name):
        escaped = os.fsencode(entry.name).decode(errors="backslashreplace").replace("\r", "\\r").replace("\n", "\\n")
        return f"{folder}{escaped}/", False
    return folder + entry.name + ("/" if entry.is_dir(follow_symlinks=False) else ""), True


def unreadable_files(tree: FileTree) -> Iterator[tuple[str, str]]:
    """(name, reason) of each file below a root that cannot be read as an object; opens every file, and reads none."""
    for row in list_rows(tree, "", None, versions=False):
        if row.key.endswith("/"):
            yield row.key, "it is no folder of Fray's, or this user cannot read it"
            continue
        try:
            with suppress(FileNotFoundError):
                check_readable(tree, row.key)
        except BadObject as error:
            yield row.key, str(error)
