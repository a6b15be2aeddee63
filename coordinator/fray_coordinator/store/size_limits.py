"""The largest object that a name may have, the same on every backend: nobody reads what nobody can have written."""

from __future__ import annotations

from fray_coordinator.store.interface import BadObject
from fray_layouts.errors import InvalidInput
from fray_layouts.inbox_keys import InboxKeys
from fray_layouts.index_keys import ChildKey, PendingKey
from fray_layouts.object_keys import PoolKeys

MAX_SPEC_BYTES = 4 * 1024**2
"""Bytes of what people drop into the inbox; a callable of `INLINE_LIMIT` and a full environment need a tenth of it."""
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
