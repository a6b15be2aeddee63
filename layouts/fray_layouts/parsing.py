"""Parses JSON text into plain values of bounded depth; any other input raises `Malformed`.

Every other reader of JSON under a root builds on this one. The depth is bounded here because the depth that Python can
handle depends on the caller's stack: a value that one place could read, another could not compare or write.
"""

from itertools import accumulate
from typing import Any

import msgspec

from fray_layouts.errors import Malformed

MAX_DEPTH = 100
"""Deepest nesting of arrays and objects in any JSON; far more than records need, far less than Python's stack
allows."""
MAX_RESULT_DEPTH = MAX_DEPTH - 10
"""The same bound for a job's return value, which is nested inside its record."""


def parse_json(data: bytes | str, deepest: int = MAX_DEPTH) -> Any:
    """Decode JSON text into plain values.

    Raises:
        Malformed: it is not UTF-8 or not JSON, has a number that no float can hold, or is nested deeper than `deepest`.
    """
    try:
        raw = data.encode() if isinstance(data, str) else data
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise Malformed(str(error)) from None
    except RecursionError:
        raise _too_deep(deepest) from None
    if _is_deeper(raw, value, deepest):
        raise _too_deep(deepest)
    return value


def _too_deep(deepest: int) -> Malformed:
    return Malformed(f"it is nested more than {deepest} deep")


_DEPTH_CHANGES = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(set(range(256)) - {*_DEPTH_CHANGES, ord('"'), ord("\\")})


def _is_deeper(raw: bytes, value: Any, deepest: int) -> bool:
    """Whether the JSON text is nested deeper: counts its brackets, which is quicker than a walk through the value."""
    brackets = raw.translate(None, _NO_BRACKETS).replace(b'""', b"")
    if len(brackets) <= 2 * deepest:
        return False
    if b'"' in brackets or b"\\" in brackets:  # some of the brackets may be part of strings
        return _is_walked_deeper(value, deepest)
    return max(accumulate(map(_DEPTH_CHANGES.__getitem__, brackets))) > deepest


def _is_walked_deeper(value: Any, deepest: int) -> bool:
    level = [value]
    for _ in range(deepest):
        if not level:
            return False
        inner = (part.values() if isinstance(part, dict) else part for part in level if isinstance(part, (dict, list)))
        level = [part for parts in inner for part in parts]
    return any(isinstance(part, (dict, list)) for part in level)
