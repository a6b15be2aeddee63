"""Sizes, durations and words for people: "512MiB" and "2h5m" are read and written, and lists become text."""

import re
from collections.abc import Sequence

from fray_layouts.errors import InvalidInput

SMALLEST_BARE_SIZE = 2**20
"""Bytes: a smaller number without a unit is refused, because people who write 16 mean 16 GB."""
_SIZE = re.compile(r"\s*(?P<number>\d{1,20}(?:\.\d+)?)\s*(?P<unit>[a-z]*)\s*", re.IGNORECASE)
# Factors by unit, in lower case and without the b.
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40, "pi": 2**50}


def parse_bytes(field: str, value: int | str) -> int:
    """Convert `value` to bytes: a number, or text such as "128m", "2GB" (powers of 1000) or "512MiB" (powers of 1024).

    Raises InvalidInput, naming `field`: the value is negative, is not a size, or is a small number without a unit.
    """
    number: int | None = value if not isinstance(value, str) else None
    if isinstance(value, str) and (found := _SIZE.fullmatch(value)):
        unit = found["unit"].lower()
        factor = (_DECIMAL | _BINARY).get(unit.removesuffix("b"))
        number = None if factor is None else int(float(found["number"]) * factor)
        if unit and number is not None:
            return number
    if not isinstance(number, int | float) or isinstance(number, bool):
        raise InvalidInput(field, value, "give bytes, or a size such as 512MiB or 2GB")
    if number < 0:
        raise InvalidInput(field, value, "give a size of at least 0")
    if 0 < number < SMALLEST_BARE_SIZE:
        given = str(value).strip()
        raise InvalidInput(field, value, f"that is {counted(int(number), 'byte')}; write {given}GB or {given}MB")
    return number


_NUMBER = r"\d{1,20}(?:\.\d{1,20})?"
_DURATION_UNITS = {
    "d(?:ays?)?": 86_400,
    "h(?:ours?|rs?)?": 3_600,
    "m(?:in(?:ute)?s?)?": 60,
    "s(?:ec(?:ond)?s?)?": 1,
    "ms": 0.001,
}
"""Seconds by pattern of the unit, in the order in which the parts of a duration are written."""
_DURATION = re.compile(r"\s*".join(rf"(?:({_NUMBER})\s*{unit})?" for unit in _DURATION_UNITS), re.IGNORECASE)


def parse_seconds(field: str, value: float | str) -> float:
    """Convert `value` to seconds: a number, as such or as text, or a duration such as "10m", "1h30m", "45s", "2 days".

    Raises InvalidInput, naming `field`: the value is neither. Bounds are for the caller to check.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    text = value.strip() if isinstance(value, str) else ""
    if re.fullmatch(_NUMBER, text):
        return float(text)
    found = _DURATION.fullmatch(text)
    if not text or found is None:
        raise InvalidInput(field, value, "give seconds, or a duration such as 10m or 1h30m")
    parts = zip(found.groups(), _DURATION_UNITS.values(), strict=True)
    return sum(float(number) * seconds for number, seconds in parts if number)


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
