"""JSON text to plain values: whatever the bytes are, the result is a value of bounded depth or one kind of error.

Every other reader of JSON under a root is built on this one. The depth is bounded here, because how deep a value may be
for Python depends on the caller's stack: what could be read in one place could not be compared or written in another.
"""

from itertools import accumulate
from typing import Any

import msgspec

from fray_layouts.errors import Malformed

MAX_DEPTH = 100
"""How deep arrays and objects of any JSON may lie in one another."""
MAX_RESULT_DEPTH = MAX_DEPTH - 10
"""The same for what a job returns, which lies inside its record."""


def parse_json(data: bytes | str, deepest: int = MAX_DEPTH) -> Any:
    """Decode JSON text into plain values.

    Raises:
        Malformed: it is not UTF-8, not JSON, holds a number that no float can hold, or is nested deeper than `deepest`.
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
    """Whether JSON text and its value are nested deeper: by the brackets, which is quicker than to walk through it."""
    brackets = raw.translate(None, _NO_BRACKETS).replace(b'""', b"")
    if len(brackets) <= 2 * deepest:
        return False
    if b'"' in brackets or b"\\" in brackets:  # some of them may lie in texts
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
