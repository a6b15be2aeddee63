"""The rules for keys, and the largest object that each may name: the same on every backend.

So a root can be copied from one to another, and nobody reads what nobody can have written.
"""

from fray_coordinator.store.interface import BadObject
from fray_layouts.bounds import MAX_KEY_BYTES
from fray_layouts.errors import InvalidInput
from fray_layouts.inbox_keys import InboxKeys
from fray_layouts.index_keys import ChildKey, PendingKey
from fray_layouts.key_encoding import MAX_KEY_PART_BYTES
from fray_layouts.object_keys import PoolKeys

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


MAX_SPEC_BYTES = 4 * 1024**2
"""Bytes of what people drop into the inbox; a callable of `MAX_INLINE_BYTES` and an environment need a tenth of it."""
MAX_RECORD_BYTES = 16 * 1024**2
"""Bytes of a record, an index entry, a lease: of whatever the pass and every agent read again and again."""
MAX_DATA_BYTES = 1024**3
"""Bytes of a result, a callable, a log chunk, a checkpoint, a segment: what is read once, by who asked for it."""

_RECORD_PREFIXES = (PendingKey.area, ChildKey.area, PoolKeys.area)


def max_bytes(key: str) -> int:
    """Bytes that an object under `key` may have."""
    if key.startswith(InboxKeys.area):
        return MAX_SPEC_BYTES
    return MAX_RECORD_BYTES if key.endswith((".json", "~lease")) or key.startswith(_RECORD_PREFIXES) else MAX_DATA_BYTES


def check_length(length: int, most: int, name: str = "it") -> None:
    """Raise `BadObject` for an object that has more than the `most` bytes of its name; before it is read."""
    if length > most:
        raise BadObject(f"{name} has more than the {most} bytes that may lie under this name")


def check_written(key: str, size: int) -> None:
    """Raise `InvalidInput` for data that is too large for its name."""
    if size > (most := max_bytes(key)):
        raise InvalidInput(key, f"{size} bytes", f"at most {most} bytes may lie under this name; divide it")
