"""Archives of workspaces, built entry by entry, also ones that Fray would never make."""

from __future__ import annotations

import tarfile

import zstandard

Entry = tuple[tarfile.TarInfo, bytes]


def file(name: str, content: bytes, mode: int = 0o644) -> Entry:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    return info, content


def link(name: str, target: str) -> Entry:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info, b""


def directory(name: str) -> Entry:
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE
    return info, b""


def packed(*entries: Entry, end: bytes = bytes(2 * tarfile.BLOCKSIZE)) -> bytes:
    """The archive of these entries, in this order."""
    tar = b"".join(
        info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape") + content + bytes(-len(content) % tarfile.BLOCKSIZE)
        for info, content in entries
    )
    return zstandard.compress(tar + end)
