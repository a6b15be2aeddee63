"""The base of every error that Fray shows to people, sorted by what the caller should do about it."""

from collections.abc import Mapping
from itertools import islice

from fray_layouts.escaping import escaped


class FrayError(Exception):
    """Base of all errors that Fray raises; catch it to catch them all.

    A message may quote text that others wrote, so terminal control characters in it are escaped.
    """

    def __str__(self) -> str:
        return escaped(super().__str__()) or " ".join((type(self).__doc__ or "").split())


class InvalidInput(FrayError, ValueError):
    """The input is wrong: correct it and call again. Nothing was changed.

    Args:
        field: dotted name of what is wrong, as the person wrote it (``resources.cpu``).
        value: what was given; shortened in the message.
        remedy: what to write instead, a sentence without its full stop.
    """

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field = field
        self.value = value
        self.remedy = remedy
        super().__init__(f"{field[:_MAX_PART]}: {_shorten(value)[:_MAX_PART]} is not accepted; {remedy}")

    def __reduce__(self) -> tuple[type, tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.remedy)


class Temporary(FrayError):
    """The call may succeed later: try the same call again."""


class Permanent(FrayError):
    """Trying again will not help: give up, or change something first."""


class Malformed(Permanent, ValueError):
    """The bytes are not in the expected format; find out what wrote them."""


_MAX_CHARACTERS, _MAX_ITEMS, _MAX_PART = 100, 5, 240
"""Bounds that keep a message within a few lines: characters of a text, items of a collection, characters of a field or
a whole value."""


def _shorten(value: object, depth: int = 2) -> str:
    """`repr` of the beginning of the value. The rest is not visited, so huge values cost nothing."""
    if isinstance(value, (str, bytes)):
        return (
            f"{value[:_MAX_CHARACTERS]!r}... ({len(value)} characters)" if len(value) > _MAX_CHARACTERS else repr(value)
        )
    if isinstance(value, int) and abs(value) > 10**_MAX_CHARACTERS:
        return f"a number of {value.bit_length()} bits"
    if not isinstance(value, (Mapping, list, tuple, set, frozenset)):
        text = repr(value)
        return f"{text[:_MAX_CHARACTERS]}... ({len(text)} characters)" if len(text) > _MAX_CHARACTERS else text
    more = ", ..." if len(value) > _MAX_ITEMS else ""
    if depth == 0:
        return "..."
    if isinstance(value, Mapping):
        shown = (f"{_shorten(key, 0)}: {_shorten(value[key], depth - 1)}" for key in islice(value, _MAX_ITEMS))
        return f"{{{', '.join(shown)}{more}}}"
    return f"[{', '.join(_shorten(item, depth - 1) for item in islice(value, _MAX_ITEMS))}{more}]"
