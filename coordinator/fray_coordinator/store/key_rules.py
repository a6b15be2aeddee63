"""The rules for keys, and the largest object under each key; they are the same on every backend.

So a root can be copied from one backend to another, and nobody reads objects that nobody could have written.
"""

from fray_coordinator.store.interface import BadObject
from fray_layouts.bounds import MAX_KEY_BYTES
from fray_layouts.errors import InvalidInput
from fray_layouts.inbox_keys import InboxKeys
from fray_layouts.index_keys import ChildKey, PendingKey
from fray_layouts.key_encoding import MAX_KEY_PART_BYTES
from fray_layouts.object_keys import PoolKeys

MAX_FOLDERS = 16
"""Most folders in a key: twice as many as any key of Fray has, and the depth of a local listing."""
PRIVATE_FOLDER = ".fray"
"""The folder where local files keep locks and temporary files; never listed."""


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
"""Bytes of a file in the inbox; a callable of `MAX_INLINE_BYTES` with an environment needs a tenth of it."""
MAX_RECORD_BYTES = 16 * 1024**2
"""Bytes of a record, an index entry or a lease: objects that the reconciler and every agent read again and again."""
MAX_DATA_BYTES = 1024**3
"""Bytes of a result, a callable, a log chunk, a checkpoint or a segment: objects that are read once, on request."""

_RECORD_PREFIXES = (PendingKey.area, ChildKey.area, PoolKeys.area)


def max_bytes(key: str) -> int:
    """The largest size of an object under `key`, in bytes."""
    if key.startswith(InboxKeys.area):
        return MAX_SPEC_BYTES
    return MAX_RECORD_BYTES if key.endswith((".json", "~lease")) or key.startswith(_RECORD_PREFIXES) else MAX_DATA_BYTES


def check_length(length: int, limit: int, name: str = "it") -> None:
    """Raise `BadObject`, before the object is read, if it has more than the `limit` bytes that its key allows."""
    if length > limit:
        raise too_large(limit, name)


def too_large(limit: int, name: str = "it") -> BadObject:
    """The error for an object that has more than the `limit` bytes that its key allows."""
    return BadObject(f"{name} has more than the {limit} bytes that an object with this key may have")


def check_written(key: str, size: int) -> None:
    """Raise `InvalidInput` if the data is too large for its key."""
    if size > (limit := max_bytes(key)):
        raise InvalidInput(key, f"{size} bytes", f"an object with this key may have at most {limit} bytes; divide it")
