"""The rules for keys, the same on every backend, so that a root can be copied from one to another."""

from __future__ import annotations

from fray_layouts.bounds import MAX_KEY_BYTES
from fray_layouts.errors import InvalidInput
from fray_layouts.key_encoding import MAX_KEY_PART_BYTES

MAX_FOLDERS = 16
"""Folders on the way to an object: twice what any key of Fray has, and as far as a local listing goes."""
PRIVATE_FOLDER = ".fray"
"""Where local files keep locks and temporary files; never listed."""


def check_key(key: str) -> None:
    """Raise `InvalidInput` unless every backend can hold an object under `key`."""
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        raise InvalidInput("key", key, "use text that UTF-8 can encode") from None
    segments = encoded.split(b"/")
    if any(segment in (b"", b".", b"..") for segment in segments):
        raise InvalidInput("key", key, "no segment between slashes may be empty, '.' or '..'")
    if b"\0" in encoded or b"\n" in encoded or b"\r" in encoded:
        raise InvalidInput("key", key, "leave out NUL, carriage return and line feed")
    if len(encoded) > MAX_KEY_BYTES or max(map(len, segments)) > MAX_KEY_PART_BYTES:
        raise InvalidInput(
            "key", key, f"use at most {MAX_KEY_PART_BYTES} bytes between two slashes and {MAX_KEY_BYTES} in all"
        )
    if len(segments) > MAX_FOLDERS + 1:
        raise InvalidInput("key", key, f"use at most {MAX_FOLDERS} slashes")
    if segments[0] == PRIVATE_FOLDER.encode():
        raise InvalidInput("key", key, f"the folder {PRIVATE_FOLDER} belongs to the store itself")
