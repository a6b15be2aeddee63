"""JSON text to plain values: whatever the bytes are, the result is a value of bounded depth or one kind of error.

Every other reader of JSON under a root is built on this one. The depth is bounded here, because how deep a value may be
for Python depends on the caller's stack: what could be read in one place could not be compared or written in another.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fray_layouts.errors import Malformed

DEEPEST = 100
"""How deep arrays and objects of any JSON may lie in one another."""
DEEPEST_RESULT = DEEPEST - 10
"""The same for what a job returns, which lies inside its record."""


def parse_json(data: bytes | str, deepest: int = DEEPEST) -> Any:
    """The value that `data` is the JSON text of.

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
    if _has_more(raw, b"[{", deepest) and isinstance(value, (dict, list)) and _is_deeper(value, deepest):
        raise _too_deep(deepest)
    return value


def _too_deep(deepest: int) -> Malformed:
    return Malformed(f"it is nested more than {deepest} deep")


def _has_more(raw: bytes, brackets: bytes, most: int) -> bool:
    """Whether there are more than `most` of these brackets: few records have, and finding is quicker than counting."""
    for bracket in brackets:
        at = raw.find(bracket)
        while at >= 0:
            most -= 1
            if most < 0:
                return True
            at = raw.find(bracket, at + 1)
    return False


def _is_deeper(value: Any, deepest: int) -> bool:
    """Whether a value that is an array or an object has others in it down to below this depth."""
    level = [value]
    for _ in range(deepest):
        if not level:
            return False
        parts = (part for whole in level for part in (whole.values() if type(whole) is dict else whole))
        level = [part for part in parts if type(part) is dict or type(part) is list]
    return bool(level)
