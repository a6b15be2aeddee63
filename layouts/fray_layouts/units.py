"""Sizes, durations and words for people: "512MiB" and "2h5m" are read and written, and lists become text.

Sizes such as "512MiB" and durations such as "2h5m", as people write and read them.

Words for messages to people.
"""

import re
from collections.abc import Sequence

from fray_layouts.errors import InvalidInput

_SIZE = re.compile(r"\s*(?P<number>\d{1,20}(?:\.\d+)?)\s*(?P<unit>[a-z]*)\s*", re.IGNORECASE)
# Factors by unit, in lower case and without the b.
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40, "pi": 2**50}


def parse_bytes(field: str, value: int | str) -> int:
    """Convert `value` to bytes: a number, or text such as "128m", "2GB" (powers of 1000) or "512MiB" (powers of 1024).

    Raises InvalidInput, naming `field`: the value is negative or is not a size.
    """
    if isinstance(value, int):
        if value < 0:
            raise InvalidInput(field, value, "give a size of at least 0")
        return value
    found = _SIZE.fullmatch(value)
    unit = found["unit"].lower().removesuffix("b") if found else None
    factor = None if unit is None else (_DECIMAL | _BINARY).get(unit)
    if found is None or factor is None:
        raise InvalidInput(field, value, "give bytes, or a size such as 512MiB or 2GB")
    return int(float(found["number"]) * factor)


def format_bytes(size: float) -> str:
    """Format `size` bytes for people in powers of 1000 up to GB, as memory is sold: "512 B", "128 MB", "1.5 GB"."""
    for unit in ("B", "kB", "MB"):
        shown = round(size, 0 if unit == "B" else 1)
        if abs(shown) < 1000:
            return f"{shown:.12g} {unit}"
        size /= 1000
    return f"{round(size, 1):.12g} GB"


def format_duration(seconds: float) -> str:
    """A duration for people, in its two largest units: "4.2s", "3m10s", "2h5m", "3d4h"."""
    if seconds < 60:
        return f"{max(seconds, 0.0):.1f}s" if seconds < 10 else f"{seconds:.0f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes}m"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours}h"


def counted(count: float, noun: str) -> str:
    """A number and its noun, in the singular for one: "1 job", "2 jobs", "0.5 cores"."""
    return f"{count:.12g} {noun}{'s' * (count != 1)}"


def files_text(count: int, size: int) -> str:
    """The number of files and their total size in bytes: "3 files, 1.5 MB"."""
    return f"{counted(count, 'file')}, {format_bytes(size)}"


def first_names(names: Sequence[str], most: int) -> str:
    """The first `most` names, separated by commas, and the number of the others: "a, b and 7 more"."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
